#pragma once

#include <algorithm>
#include <deque>
#include <functional>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

namespace lockstep::metrics {

/// A token bucket of processor time: what a thread may use is `share` of the time that passes, in
/// the long run, and `burst_s` at once. It is told afterwards what was used, so that it may be
/// overdrawn, and then is repaid. Threads: one.
class ProcessorAllowance {
 public:
  ProcessorAllowance(double share, double burst_s)
      : share_(share), burst_s_(burst_s), left_s_(burst_s) {}

  /// How long until the thread may use some again; 0: it may. `now_s` of a clock that never goes
  /// back, `used_s` by the thread since it began.
  double wait_s(double now_s, double used_s) {
    if (last_used_s_ < 0) last_used_s_ = used_s;  // before it was asked nothing counts
    left_s_ = std::min(burst_s_, left_s_ + (now_s - last_now_s_) * share_);
    left_s_ -= used_s - last_used_s_;
    last_now_s_ = now_s;
    last_used_s_ = used_s;
    return left_s_ > 0 ? 0 : (kRound_s - left_s_) / share_;
  }

 private:
  /// Used in one go after a wait: to wake up for each answer would cost more than the answer.
  static constexpr double kRound_s = 2e-3;

  const double share_, burst_s_;
  double left_s_, last_now_s_ = 0, last_used_s_ = -1;
};

/// Where answers wait while the server's thread has used what it may of the processor, so that
/// whoever asks without end takes next to nothing from the training beside it. One is let out after
/// the other; requests that are refused come after those that are not. None waits for more than 2
/// s, though handshakes and probes, which do not wait, use up all that there is. All on the
/// server's thread.
class WaitingLine {
 public:
  using Answer = std::function<void()>;

  /// `share` of a core, and `burst_s` of its time at once.
  WaitingLine(boost::asio::io_context& io, double share, double burst_s);
  WaitingLine(const WaitingLine&) = delete;
  WaitingLine& operator=(const WaitingLine&) = delete;

  /// Runs `answer` when its turn has come: now, if there is time left and none waits.
  void enter(Answer answer) { enter(&good_, std::move(answer)); }
  void enter_last(Answer answer) { enter(&refused_, std::move(answer)); }

 private:
  static constexpr double kLongest_s = 2;
  struct Waiting {
    double since_s;
    Answer answer;
  };
  using Line = std::deque<Waiting>;

  void enter(Line* line, Answer answer);
  void wait(double time_s);
  void let_out();
  /// Of the two lines the one whose first has waited longer; empty only if both are.
  Line& older_line();

  boost::asio::steady_timer turn_;
  ProcessorAllowance allowance_;
  Line good_, refused_;
};

}  // namespace lockstep::metrics
