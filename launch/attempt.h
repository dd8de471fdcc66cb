#pragma once

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "launch/mpirun.h"
#include "launch/processes.h"
#include "launch/stop_signals.h"

/// One start of mpirun and its ranks, and the test of hosts before it.
namespace lockstep::launch {

/// Returns the hosts on which mpirun cannot start a program and detect its end within `limit_s`.
/// This takes the same way as the start of ranks. All hosts are tried at once.
std::set<std::string> unreachable(const std::vector<Host>& hosts,
                                  const std::vector<std::string>& mpirun_arguments,
                                  const Child::Variables& variables, double limit_s);

/// Request of the user or the system to the supervisor. It holds across all starts.
struct Wish {
  bool to_stop = false;  ///< after a save
  bool to_end = false;   ///< now, without a save: a second SIGINT, or the grace is over
};

/// One start of mpirun and its ranks, from the first process to the last.
///
/// Signals to this process are passed on. SIGUSR1 (save and stop) and SIGUSR2 (save and continue)
/// remain the same; SIGUSR2 waits until all ranks of this host handle it. SIGTERM, SIGHUP and
/// SIGINT become SIGUSR1, since mpirun itself kills ranks about a second after such a signal. All
/// processes are killed `grace_s` later. A second SIGINT kills at once.
class Attempt {
 public:
  Attempt(std::unique_ptr<Child> mpirun, double grace_s, SignalQueue* signals, Wish* wish);

  /// Returns once mpirun has ended and nothing that it started runs on this host. The exit code is
  /// mpirun's, or 128 + n if signal n ended it. mpirun's stderr is copied to ours like log lines:
  /// if no process reads it, the text is lost and nothing here blocks.
  int run();
  const MpirunMessages& messages() const { return messages_; }
  /// True if mpirun did not end after its ranks, as with a cut link, and was killed.
  bool was_stuck() const { return was_stuck_; }

 private:
  using Clock = std::chrono::steady_clock;
  void wait_a_turn();
  void obey();
  void ask_to_stop(double within_s);
  void ask_to_save();
  void tell_ranks_to_stop();
  void pass_on_save(const std::vector<pid_t>& ranks);
  void pass_on_errors();
  void look_after_mpirun();

  const double grace_s_;
  SignalQueue& signals_;
  Wish& wish_;
  const std::unique_ptr<Child> mpirun_;
  MpirunMessages messages_;
  ProcessEnds ranks_here_;
  std::optional<Clock::time_point> kill_at_;  ///< end of the grace
  std::optional<Clock::time_point>
      ranks_gone_at_;  ///< set once this host's ranks have ended but mpirun has not
  const Clock::time_point began_at_ = Clock::now();
  Clock::time_point look_again_at_ = began_at_;
  bool is_save_asked_ = false;  ///< by SIGUSR2 that is not passed on yet
  bool had_ranks_ = false, are_told_ = false, was_stuck_ = false;
};

}  // namespace lockstep::launch
