#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::checkpoint {

inline constexpr std::string_view kOld = "old";

/// A file that goes, and why.
struct Garbage {
  std::string name;         ///< in the folder
  std::string_view reason;  ///< temporary | no_index | other_shards | old
  int64_t num_bytes = 0;
};

/// What goes, in the order in which it goes: of an old save the index before its shards.
///
/// Debris: temporary files; shards without an index; shards that the index beside them does not
/// name, if that can be read. Old: files of saves with a lower number than the `keep`-th newest
/// complete save of their prefix, complete or not; so the newest complete save stays, and a prefix
/// with fewer complete ones keeps all; the best save (checkpoint/save/best_save.h) and the one that
/// latest_checkpoint() gives, which its user may have gone back to, are never old.
/// Complete is what has a sound index and shards of the right sizes. Without `keep` (else >= 1) no
/// save is old.
std::vector<Garbage> find_garbage(const std::filesystem::path& dir, std::optional<int64_t> keep);

}  // namespace lockstep::checkpoint
