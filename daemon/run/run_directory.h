#pragma once

#include <optional>

#include "base/files/folder_lock.h"
#include "daemon/config/run_config.h"
#include "dist/communicator.h"
#include "dist/process_info.h"

namespace lockstep::daemon {

/// The run's folder. Rank 0 locks an existing folder against other runs at once, before any rank
/// looks for checkpoints in it. Nothing else is touched before open().
class RunDirectory {
 public:
  /// Collective. Throws Error(kCannotCreate) on every rank if another run holds the folder.
  RunDirectory(const RunConfig& config, const dist::ProcessInfo& process,
               dist::Communicator& control);

  /// Creates the folder if necessary and opens this rank's log file. Also removes the summary and
  /// the failure files of an earlier run, which could be mistaken for this run's. Call it once
  /// everything else has passed. Collective. Throws on every rank: Error(kCannotCreate), or kConfig
  /// if the ranks see different folders.
  void open();

 private:
  void open_as_first();
  void open_log() const;

  const RunConfig& config_;
  const dist::ProcessInfo& process_;
  dist::Communicator& control_;
  std::optional<files::FolderLock> lock_;  // rank 0
};

}  // namespace lockstep::daemon
