#pragma once

#include <chrono>

namespace lockstep::dist::mpi {

/// Back-off of a rank that polls for a message. For some microseconds it polls without a pause,
/// then it yields its core between polls. After that it sleeps for an eighth of the time waited so
/// far, up to a limit. The limit rises to a 64th of the time waited, at most a millisecond, so that
/// long waits take hardly any processor time. So it notices an event at most 12 % late.
class BackOff {
 public:
  using Clock = std::chrono::steady_clock;

  /// yield_for: time until the first sleep.
  explicit BackOff(Clock::duration yield_for,
                   Clock::duration longest_sleep = std::chrono::milliseconds(1))
      : yield_for_(yield_for), longest_sleep_(longest_sleep) {}

  Clock::duration waited() const { return Clock::now() - start_; }
  void pause() const;

 private:
  Clock::duration longest_sleep(Clock::duration so_far) const;

  Clock::time_point start_ = Clock::now();
  Clock::duration yield_for_, longest_sleep_;
};

}  // namespace lockstep::dist::mpi
