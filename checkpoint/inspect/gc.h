#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "checkpoint/inspect/inspect.h"

/// `lockstep ckpt gc`. The saver has its own tidying (checkpoint/save/retention.h).
namespace lockstep::checkpoint {

struct GcOptions {
  std::optional<int64_t> keep;  ///< also saves older than the newest `keep` complete ones; >= 1
  bool dry_run = false;         ///< only says what would go
  bool json = false;
};

/// Removes what find_garbage() finds (checkpoint/inspect/garbage.h), the state file first rewritten
/// so that it names none of it, and says what went and how many bytes that gives back. While it
/// works it holds the lock of the folder and of its parent, the run's folder, where there is one,
/// and the right to save under each prefix (checkpoint/files/save_lock.h); Error(kCannotCreate)
/// naming the holder if a run has one of them. Error(kInputMissing) if `dir` is no folder.
///
/// JSON: {"dir", "dry_run", "removed": [{"file", "reason", "bytes"}], "bytes_freed", "saves":
/// [prefix, ...]}: what is left.
Answer collect_garbage(const std::string& dir, const GcOptions& options);

}  // namespace lockstep::checkpoint
