#pragma once

#include <chrono>

namespace lockstep::dist::mpi {

/// Back-off of a rank that polls for a message: it polls again at once for some microseconds, then
/// after it has yielded its core, then after a sleep of an eighth of the time waited so far, up to
/// a limit, which rises to a 64th of the time waited, a millisecond at most: who waits long takes
/// hardly any processor time from others. So it notices an event at most 12 % late.
class BackOff {
 public:
  using Clock = std::chrono::steady_clock;

  /// yield_for: how long it keeps asking before it first sleeps.
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
