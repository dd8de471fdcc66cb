#pragma once

#include <chrono>
#include <functional>
#include <optional>

#include "base/error.h"
#include "base/stop_request.h"

/// Signals that control a run, and the time limit for the save at its end.
namespace lockstep::daemon {

/// Counts the signals that control a run. The handlers only count; the methods read the counters.
///
///   SIGUSR1                  save at the next step and stop
///   SIGUSR2                  save at the next step and continue
///   SIGTERM, SIGINT, SIGHUP  end, and save if there is time
///
/// A further SIGTERM, SIGINT or SIGHUP after 10 seconds ends the process at once, and so does any
/// second SIGINT. SIGHUP is not caught if it is ignored, as under nohup.
///
/// set_stop_signals() gives any of them the meaning of SIGUSR1.
///
/// Create it before anything else starts, so that no signal meets the default action. Signals that
/// were blocked until then (hold_stop_signals()) are delivered now.
class Signals final : public StopRequest {
 public:
  Signals();
  ~Signals() override;  // ignores the signals from now on: the process is about to end
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  void set_stop_signals(const std::vector<int>& signals) override;
  bool stop_asked() const override;
  bool end_asked() const override;
  int64_t num_saves_asked() const override;
  int64_t num_received(int signal_number) const override;
};

/// Time limit for a save after a stop request with a limit (SIGTERM, SIGINT, SIGHUP). It equals the
/// grace period, but is at least 5 s: a short grace describes the launcher's kill timeout, not the
/// speed of a disk. "Save and stop" (SIGUSR1) alone has no limit.
class EndLimit {
 public:
  /// `requests` must outlive the object. `abort` ends all ranks and does not return; if empty,
  /// look() throws.
  EndLimit(const StopRequest& requests, double grace_s, std::function<void(const Error&)> abort);

  /// Changes the grace period. The caller of look() calls it.
  void set_grace(double grace_s);

  /// Ends all ranks once the time is over. Call it from time to time while waiting for the save of
  /// step `save`. The time counts from the first call after the request. One caller at a time.
  void look(int64_t save);

 private:
  using Clock = std::chrono::steady_clock;

  const StopRequest& requests_;
  double limit_s_;
  const std::function<void(const Error&)> abort_;
  std::optional<Clock::time_point> told_at_;
};

}  // namespace lockstep::daemon
