#pragma once

#include <chrono>

namespace lockstep::dist::mpi {

/// How a rank waits for what it can only ask for: at once again for some microseconds, then after
/// yielding its core, then after sleeping an eighth of the time waited so far, up to a limit. So it
/// finds out with 12 % delay; with a limit of a millisecond it takes hardly any time from who
/// computes, with a short one some.
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
  Clock::time_point start_ = Clock::now();
  Clock::duration yield_for_, longest_sleep_;
};

}  // namespace lockstep::dist::mpi
