#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::checkpoint {

/// Reason of files of checkpoints beyond the number to keep.
inline constexpr std::string_view kOld = "old";

/// A file to remove, and the reason.
struct Garbage {
  std::string name;         ///< in the folder
  std::string_view reason;  ///< temporary | no_index | other_shards | old
  int64_t num_bytes = 0;
};

/// Returns the files to remove, in the order of removal: of an old checkpoint the index before its
/// shards.
///
/// Debris is always garbage: temporary files, shards without an index, and shards that a readable
/// index does not name.
///
/// With `keep` (>= 1), old checkpoints are garbage too. Old means: the number is lower than that of
/// the `keep`-th newest complete checkpoint of the same prefix. The old one may be complete or not.
/// So the newest complete checkpoint stays, and a prefix with fewer complete ones keeps all. Two
/// are never old: the best checkpoint (checkpoint/save/best_save.h), and that of
/// latest_checkpoint(), to which the user may have gone back. Complete means: a valid index, and
/// shards of the right sizes.
std::vector<Garbage> find_garbage(const std::filesystem::path& dir, std::optional<int64_t> keep);

}  // namespace lockstep::checkpoint
