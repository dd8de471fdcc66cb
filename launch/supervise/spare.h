#pragma once

#include <memory>
#include <string>
#include <vector>

#include "launch/processes/child.h"

namespace lockstep::launch {

/// Ranks that are started before they are needed (lockstepd --standby) and replace lost ranks at
/// once. They wait for a line on the first rank's standard input.
class Spare {
 public:
  /// Starts mpirun with spare ranks. Does nothing after several spares have ended on their own.
  void begin(const std::vector<std::string>& command, const Child::Variables& variables);
  /// True if spare ranks wait. Once they have ended, copies their output to the log.
  bool waits();
  /// Starts the waiting ranks, which then belong to the caller. Returns null if there are none, or
  /// if they were started with another command.
  std::unique_ptr<Child> take(const std::vector<std::string>& command);
  /// Returns the process id of their mpirun; -1 if there is none.
  pid_t pid() const { return mpirun_ ? mpirun_->pid() : -1; }

 private:
  std::unique_ptr<Child> mpirun_;
  std::vector<std::string> command_;
  int num_lost_ = 0;
};

}  // namespace lockstep::launch
