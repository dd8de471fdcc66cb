#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "launch/mpirun/mpirun_messages.h"
#include "launch/processes/child.h"
#include "launch/processes/process_ends.h"
#include "launch/processes/signal_queue.h"
#include "launch/supervise/spare.h"

namespace lockstep::launch {

/// What the user or the system has asked the supervisor for; it holds over all starts.
struct Wish {
  bool to_stop = false;  ///< save and stop: SIGUSR1, or, within the grace, SIGTERM, SIGHUP, SIGINT
  bool to_end = false;   ///< now, without a save: a second SIGINT, or the grace is over
};

/// One start of mpirun and its ranks, from the first process to the last.
///
/// Signals to this process are passed on: SIGUSR1 (save and stop) and SIGUSR2 (save and go on) as
/// they are, SIGUSR2 once all ranks of this host hear it; SIGTERM, SIGHUP and SIGINT as SIGUSR1, as
/// mpirun gives ranks a second or so when it gets those itself, and all is killed `grace_s` later;
/// a second SIGINT kills at once.
class Attempt {
 public:
  /// `spare` is left alone; `each_second` is called while the ranks run.
  Attempt(std::unique_ptr<Child> mpirun, double grace_s, SignalQueue* signals, Wish* wish,
          const Spare& spare, std::function<void()> each_second);

  /// Returns once mpirun has ended and nothing that it started runs on this host: its exit code,
  /// 128 + n where signal n ended it. What it writes to stderr goes to ours as log lines do: where
  /// nobody reads it, it is lost, and nothing here waits.
  int run();
  const MpirunMessages& messages() const { return messages_; }
  /// mpirun did not end after its ranks, as behind a cut link, and was killed.
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
  const Spare& spare_;
  const std::function<void()> each_second_;
  const std::unique_ptr<Child> mpirun_;
  MpirunMessages messages_;
  ProcessEnds ranks_here_;
  std::optional<Clock::time_point> kill_at_;  ///< the grace ends
  std::optional<Clock::time_point>
      ranks_gone_at_;  ///< those of this host, and mpirun is still there
  const Clock::time_point began_at_ = Clock::now();
  Clock::time_point look_again_at_ = began_at_;
  bool is_save_asked_ = false;  ///< by SIGUSR2, which has not gone on yet
  bool had_ranks_ = false, are_told_ = false, was_stuck_ = false;
};

}  // namespace lockstep::launch
