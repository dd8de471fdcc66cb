#pragma once

#include <chrono>
#include <functional>
#include <optional>

#include "base/error.h"
#include "train/step/stop_request.h"

namespace lockstep::daemon {

/// Time limit for a save when a run is told to end (SIGTERM, SIGINT, SIGHUP). It equals the grace
/// period, but is at least 5 s: a short grace describes the launcher's kill timeout, not the speed
/// of a disk. "Save and stop" (SIGUSR1) alone has no limit.
class EndLimit {
 public:
  /// `requests` must outlive the object. `abort` ends all ranks and does not return; if empty,
  /// look() throws.
  EndLimit(const train::StopRequest& requests, double grace_s,
           std::function<void(const Error&)> abort);

  /// Changes the grace period. The caller of look() calls it.
  void set_grace(double grace_s);

  /// Ends all ranks once the time is over. Call it from time to time while waiting for the save of
  /// step `save`. The time counts from the first call after the request. One caller at a time.
  void look(int64_t save);

 private:
  using Clock = std::chrono::steady_clock;

  const train::StopRequest& requests_;
  double limit_s_;
  const std::function<void(const Error&)> abort_;
  std::optional<Clock::time_point> told_at_;
};

}  // namespace lockstep::daemon
