#pragma once

#include <optional>

#include "base/files/folder_lock.h"
#include "daemon/config/run_config.h"
#include "dist/communicator.h"
#include "dist/process_info.h"

namespace lockstep::daemon {

/// The run's folder. A folder that exists is locked against other runs at once (rank 0), before
/// anybody looks for saves in it; nothing else is touched before open().
class RunDirectory {
 public:
  /// Collective. Throws Error(kCannotCreate) on every rank if another run holds the folder.
  RunDirectory(const RunConfig& config, const dist::ProcessInfo& process,
               dist::Communicator& control);

  /// Makes the folder if need be, opens this rank's log file, and removes the summary and the noted
  /// failures of an earlier run, so that none is mistaken for this run's. Call once everything else
  /// has passed. Collective. Throws on every rank: Error(kCannotCreate); kConfig if the ranks see
  /// different folders.
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
