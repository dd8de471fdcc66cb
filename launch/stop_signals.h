#pragma once

#include <initializer_list>
#include <vector>

/// Stop signals to a supervisor, before and while it reads them.
namespace lockstep::launch {

/// Handling of stop signals that arrive before the supervisor reads them: while its program is
/// loaded and the run file is read. The process then ends with 75, as later. Nothing has been
/// started yet that would have to end.
///
/// hold_stop_signals() blocks such signals, even across exec. end_at_stop_signals() ends the
/// process at a pending or later one, until stop_signals_are_heard(). SIGUSR2 (save and continue)
/// has nothing to save then and is ignored. From end_at_stop_signals() on SIGPIPE is ignored.
///
/// Meant for main() of a program that will call supervise(), before it starts threads.
void hold_stop_signals();
void end_at_stop_signals();

/// Ends the handling above. Called by the owner of a SignalQueue, which has blocked these signals
/// and reads them from now on.
void stop_signals_are_heard();

/// True if this command line of lockstep leads to supervise().
bool is_supervisor(int argc, char** argv);

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
