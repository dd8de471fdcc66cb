#pragma once

#include <memory>
#include <string>
#include <vector>

#include "launch/processes/child.h"

namespace lockstep::launch {

/// Ranks that have been started before they are needed and wait for a word on their first rank's
/// input (lockstepd --standby), so that those which are lost have successors at once.
class Spare {
 public:
  /// Starts mpirun with them; nothing after some that ended unasked.
  void begin(const std::vector<std::string>& command, const Child::Variables& variables);
  /// Whether there are any; what they have printed goes on to the log once they have ended.
  bool waits();
  /// Gives the word: they are the caller's now. Nothing where none wait, or where they were started
  /// with another command.
  std::unique_ptr<Child> take(const std::vector<std::string>& command);
  /// Of their mpirun; -1: there is none.
  pid_t pid() const { return mpirun_ ? mpirun_->pid() : -1; }

 private:
  std::unique_ptr<Child> mpirun_;
  std::vector<std::string> command_;
  int num_lost_ = 0;
};

}  // namespace lockstep::launch
