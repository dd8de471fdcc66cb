#pragma once

#include <map>
#include <vector>

#include <poll.h>
#include <sys/types.h>

namespace lockstep::launch {

/// Detects at once the end of processes that are not children of this one (pidfd_open). One thread.
class ProcessEnds {
 public:
  ProcessEnds() = default;
  ~ProcessEnds();
  ProcessEnds(const ProcessEnds&) = delete;
  ProcessEnds& operator=(const ProcessEnds&) = delete;

  /// Watches a further process. Ignores one that is already watched or has ended.
  void add(pid_t pid);
  /// Waits until one of `others` is ready, a watched process ends or the timeout expires. Processes
  /// that have ended are no longer watched.
  void wait(std::vector<pollfd> others, int timeout_ms);
  /// True if some processes were watched and none is left.
  bool are_all_over() const { return had_any_ && descriptors_.empty(); }

 private:
  std::map<pid_t, int> descriptors_;  ///< by process
  bool had_any_ = false;
};

}  // namespace lockstep::launch
