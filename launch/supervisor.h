#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "launch/mpirun.h"

namespace lockstep::launch {

/// Committed checkpoint. Equal values mean the same commit.
struct SaveFound {
  std::string prefix;   ///< empty: there is none
  int64_t written = 0;  ///< time of the commit; distinguishes commits of the same name
  bool operator==(const SaveFound&) const = default;
};

struct SupervisorOptions {
  int num_ranks = 1;
  int min_ranks = 1;        ///< enough ranks to continue after hosts have failed
  std::vector<Host> hosts;  ///< none: this host alone
  int max_restarts = 3;     ///< consecutive ones without a new checkpoint
  int num_spares = 0;       ///< processes that take the places of lost ranks (lockstepd --spares)
  double grace_s = 30;      ///< from SIGTERM until all processes are killed
  std::vector<std::string> mpirun_arguments;
  std::filesystem::path folder;  ///< of the run; the supervisor uses its sub-folder `supervisor`
  /// Returns the command line of each rank. `is_restart`: the ranks can resume from checkpoints of
  /// this supervisor's earlier ranks.
  std::function<std::vector<std::string>(bool is_restart)> program;
  /// Returns the newest checkpoint; a change means progress. Called on a separate thread, which may
  /// outlive supervise() if a mount hangs. So the function must own all that it uses.
  std::function<SaveFound()> newest_save;
  /// Called with the ranks' exit code; may remove the cause of the failure. Returns true to restart
  /// the ranks, whatever the code. May be empty.
  std::function<bool(int exit_code)> settle;
};

/// Starts the ranks, and restarts them from the newest checkpoint when they are lost
/// (launch/restarts.h). Ends when the run is done, was stopped on request, or another try is
/// pointless. Returns the last start's exit code; 75 if a stop ended it. Nothing that it started
/// outlives it. If this process is killed, mpirun receives a signal to end. One thread; call it
/// once per process, before any other thread starts.
///
/// Throws Error: kCannotCreate if another supervisor has this run, kUsage for numbers that do not
/// fit, kUnavailable if there is no mpirun. From here on the log is written in the background
/// (base/log.h).
int supervise(const SupervisorOptions& options);

}  // namespace lockstep::launch
