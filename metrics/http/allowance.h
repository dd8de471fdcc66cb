#pragma once

#include <algorithm>
#include <chrono>

namespace lockstep::metrics {

/// A token bucket: `per_s` events a second in the long run, `burst` of them at once. Threads: one.
class Allowance {
 public:
  using Clock = std::chrono::steady_clock;

  Allowance(double per_s, double burst) : per_s_(per_s), burst_(burst), num_left_(burst) {}

  /// An event has happened, or will once it has waited; below 0 are those that wait.
  void take(Clock::time_point now = Clock::now()) {
    refill(now);
    --num_left_;
  }
  /// How long until the next one is allowed; 0: it is.
  Clock::duration wait(Clock::time_point now = Clock::now()) {
    refill(now);
    if (num_left_ >= 1) return {};
    return std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>((1 - num_left_) / per_s_));
  }

 private:
  void refill(Clock::time_point now) {
    const double passed_s = std::chrono::duration<double>(now - last_).count();
    num_left_ = std::min(burst_, num_left_ + passed_s * per_s_);
    last_ = now;
  }

  const double per_s_, burst_;
  double num_left_;
  Clock::time_point last_ = Clock::now();
};

}  // namespace lockstep::metrics
