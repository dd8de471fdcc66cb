#pragma once

#include <map>
#include <vector>

#include <poll.h>
#include <sys/types.h>

namespace lockstep::launch {

/// Knows at once when processes end that are no children of this one (pidfd_open). One thread.
class ProcessEnds {
 public:
  ProcessEnds() = default;
  ~ProcessEnds();
  ProcessEnds(const ProcessEnds&) = delete;
  ProcessEnds& operator=(const ProcessEnds&) = delete;

  /// Looks at this one too from now on; nothing for one that it knows, or that has ended.
  void add(pid_t pid);
  /// Waits, also until one of `others` is ready or one of its own ends. Those that have ended are
  /// known no more.
  void wait(std::vector<pollfd> others, int timeout_ms);
  /// Whether some were known and none is left.
  bool are_all_over() const { return had_any_ && descriptors_.empty(); }

 private:
  std::map<pid_t, int> descriptors_;  ///< by process
  bool had_any_ = false;
};

}  // namespace lockstep::launch
