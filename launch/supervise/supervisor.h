#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "launch/mpirun/hosts.h"

namespace lockstep::launch {

/// A committed save. Equal ones are the same commit.
struct SaveFound {
  std::string prefix;   ///< empty: there is none
  int64_t written = 0;  ///< when, so that a commit which replaces a save of its name is told apart
  bool operator==(const SaveFound&) const = default;
};

struct SupervisorOptions {
  int num_ranks = 1;
  int min_ranks = 1;        ///< what the run may go on with where hosts have failed
  std::vector<Host> hosts;  ///< none: this host alone
  int max_restarts = 3;     ///< in a row without a new save
  int num_spares = 0;       ///< 1: other ranks wait to take over (lockstepd --standby)
  double grace_s = 30;      ///< from SIGTERM until all is killed
  std::vector<std::string> mpirun_arguments;
  std::filesystem::path folder;  ///< of the run; the supervisor's own is `supervisor` in it
  /// Each rank's command line; `is_restart`: saves of this supervisor's ranks are there to go on
  /// from.
  std::function<std::vector<std::string>(bool is_restart)> program;
  /// Another one than before means progress. Called on a thread of its own, which may outlive
  /// supervise() where a mount hangs: it owns what it uses.
  std::function<SaveFound()> newest_save;
  /// Called with what ranks have ended with: takes the cause out of their way. True: they begin
  /// again, whatever the code. Empty: nobody can.
  std::function<bool(int exit_code)> settle;
};

/// Starts the ranks, and again from the newest save when they are lost (supervise/restarts.h),
/// until the run is done, was stopped as asked, or no further try is worth it. Returns the exit
/// code for that: the last start's, 75 where a stop ended it. Nothing that it started outlives it;
/// if it is killed itself, mpirun is told to end. One thread; call it once a process, before any
/// other thread.
///
/// Throws Error: kCannotCreate if another supervisor has this run, kUsage for numbers that do not
/// fit, kUnavailable if there is no mpirun. The log is written in the background from here on
/// (base/console.h).
int supervise(const SupervisorOptions& options);

}  // namespace lockstep::launch
