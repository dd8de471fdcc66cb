#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "checkpoint/inspect/inspect.h"

/// `lockstep ckpt gc`. The saver removes its own surplus itself (checkpoint/save/retention.h).
namespace lockstep::checkpoint {

struct GcOptions {
  std::optional<int64_t> keep;  ///< number of complete checkpoints to keep; >= 1
  bool dry_run = false;         ///< only reports what would be removed
  bool json = false;
};

/// Removes the files of find_garbage() (checkpoint/inspect/garbage.h) and reports them with the
/// number of bytes freed. The state file is rewritten first, so that it names none of them.
///
/// During the removal it holds the folder's lock. If the parent, the run's folder, has a lock, it
/// holds that too. It also holds the right to save under each prefix
/// (checkpoint/files/save_lock.h). Throws Error(kCannotCreate) with the holder's name if a run has
/// one of them. Throws Error(kInputMissing) if `dir` is not a folder.
///
/// JSON: {"dir", "dry_run", "removed": [{"file", "reason", "bytes"}], "bytes_freed", "saves":
/// [prefix, ...]}; "saves" are those that remain.
Answer collect_garbage(const std::string& dir, const GcOptions& options);

}  // namespace lockstep::checkpoint
