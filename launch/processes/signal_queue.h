#pragma once

#include <csignal>
#include <initializer_list>
#include <vector>

namespace lockstep::launch {

/// While it lives, these signals do nothing to this process but wait in a queue. Make it before any
/// thread. SIGHUP is left alone where it is ignored, as under nohup.
class SignalQueue {
 public:
  SignalQueue(std::initializer_list<int> signals);
  ~SignalQueue();  // the mask is as before; what still waits takes effect
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  /// Readable when a signal waits, for poll().
  int descriptor() const { return descriptor_; }
  /// Those that have come, in their order; equal ones that came together are one. Does not block.
  std::vector<int> take();

 private:
  sigset_t before_{};
  int descriptor_ = -1;
};

}  // namespace lockstep::launch
