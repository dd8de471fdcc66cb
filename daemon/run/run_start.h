#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/files/folder_lock.h"
#include "base/stop_request.h"
#include "daemon/config/overrides.h"
#include "daemon/config/run_config.h"
#include "daemon/run/training_context.h"
#include "dist/communicator.h"
#include "dist/process_info.h"

/// Start of a run: checks that all ranks agree, the run's folder.
namespace lockstep::daemon {

/// Reads a run file as the session will, to load files and libraries into memory in advance. Faults
/// are ignored here; the session reports them.
void read_ahead(const std::string& config_file, const std::vector<Override>& overrides);

// Checks that all ranks agree before training. All functions are collective and throw the same
// error everywhere. The error names the difference.

/// Throws Error(kConfig) if the world is not the expected one. Call it after
/// check_equal_programs(): all ranks then have equal settings and reach the same result.
void check_world_size(const RunOptions& options, const dist::ProcessInfo& process);

/// Throws Error(kDisagree) unless settings, binaries and libraries are equal.
void check_equal_programs(const RunConfig& config, const std::string& mpi_version,
                          dist::Communicator& control);

/// Throws Error(kDisagree) unless parameter names and shapes, the data sets and the timeline are
/// equal.
void check_equal_models(const TrainingContext& context);

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
