#pragma once

#include <csignal>
#include <initializer_list>
#include <vector>

namespace lockstep::launch {

/// Scope in which these signals are queued instead of taking effect. Create it before any thread.
/// SIGHUP is not queued if it is ignored, as under nohup.
class SignalQueue {
 public:
  SignalQueue(std::initializer_list<int> signals);
  ~SignalQueue();  // restores the signal mask; pending signals take effect
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  /// Returns a descriptor for poll(), readable when a signal is pending.
  int descriptor() const { return descriptor_; }
  /// Returns the signals that have arrived, in order. Equal signals that arrived together count
  /// once. Does not block.
  std::vector<int> take();

 private:
  sigset_t before_{};
  int descriptor_ = -1;
};

}  // namespace lockstep::launch
