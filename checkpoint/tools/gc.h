#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/tools/inspect.h"

/// Garbage in a folder of checkpoints, and `lockstep ckpt gc`, which removes it.
namespace lockstep::checkpoint {

/// Reason of files of checkpoints beyond the number to keep.
inline constexpr std::string_view kOld = "old";

/// A file to remove, and the reason.
struct Garbage {
  std::string name;         ///< in the folder
  std::string_view reason;  ///< temporary | no_index | other_shards | old | upload
  int64_t num_bytes = 0;
};

/// Returns the files to remove, in the order of removal: of an old checkpoint the index before its
/// shards.
///
/// Debris is always garbage: temporary files, shards without an index, and shards that a readable
/// index does not name. Files of unfinished_replacements() are not.
///
/// With `keep` (>= 1), old checkpoints are garbage too. Old means: the number is lower than that of
/// the `keep`-th newest complete checkpoint of the same prefix. The old one may be complete or not.
/// So the newest complete checkpoint stays, and a prefix with fewer complete ones keeps all. Two
/// are never old: the best checkpoint (checkpoint/save/checkpoint_folder.h), and that of
/// latest_checkpoint(), to which the user may have gone back. Complete means: a valid index, and
/// shards of the right sizes.
std::vector<Garbage> find_garbage(const std::filesystem::path& dir, std::optional<int64_t> keep);

/// Options of `lockstep ckpt gc`. The saver removes its own surplus itself
/// (checkpoint/save/checkpoint_folder.h).
struct GcOptions {
  std::optional<int64_t> keep;  ///< number of complete checkpoints to keep; >= 1
  /// Age in seconds from which, in an object store, unfinished uploads and shards without an index
  /// are garbage. Younger ones may belong to a save in progress.
  double min_age_s = 3600;
  bool dry_run = false;  ///< only reports what would be removed
  bool json = false;
};

/// Calls finish_replacements(), removes the files of find_garbage() and reports them with the
/// number of bytes freed. The state file is rewritten first, so that it names none of them.
///
/// In an object store there are no locks. Unfinished uploads count as garbage too (min_age_s).
///
/// On this host it holds the folder's lock during the removal. If the parent, the run's folder, has
/// a lock, it holds that too. It also holds the right to save under each prefix
/// (checkpoint/save/checkpoint_folder.h). Throws Error(kCannotCreate) with the holder's name if a
/// run has one of them. Throws Error(kInputMissing) if `dir` is not a folder.
///
/// JSON: {"dir", "dry_run", "removed": [{"file", "reason", "bytes"}], "bytes_freed", "saves":
/// [prefix, ...]}; "saves" are those that remain.
Answer collect_garbage(const std::string& dir, const GcOptions& options);

}  // namespace lockstep::checkpoint
