#pragma once

#include <chrono>
#include <functional>
#include <optional>

#include "base/error.h"
#include "train/step/stop_request.h"

namespace lockstep::daemon {

/// How long a run that is told to end (SIGTERM, SIGINT, SIGHUP) waits for a save: as long as the
/// grace, and 5 s at least, as a short grace says when the launcher kills, not what a disk needs.
/// "Save and stop" (SIGUSR1) alone waits as long as it takes.
class EndLimit {
 public:
  /// `requests` must outlive it. `abort` ends all ranks and does not return; empty: look() throws.
  EndLimit(const train::StopRequest& requests, double grace_s,
           std::function<void(const Error&)> abort);

  /// Another grace from now on. By the caller of look().
  void set_grace(double grace_s);

  /// Called from time to time while `save` (its step) is waited for: ends all ranks, once the time
  /// is over. It counts from the first look after the request. One caller at a time.
  void look(int64_t save);

 private:
  using Clock = std::chrono::steady_clock;

  const train::StopRequest& requests_;
  double limit_s_;
  const std::function<void(const Error&)> abort_;
  std::optional<Clock::time_point> told_at_;
};

}  // namespace lockstep::daemon
