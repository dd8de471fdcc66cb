#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace lockstep::dist::mpi {

/// A count in memory that several processes share: one rank raises it, others wait for it.
///
/// What the raising rank wrote before raise() is visible to whoever saw the count. A waiter spins
/// for some microseconds, then yields its core, then sleeps in the kernel until it is woken: a rank
/// that waits takes no time from one that computes on the same core. raise() costs a system call
/// only if someone sleeps.
class alignas(64) SequenceCounter {
 public:
  using Clock = std::chrono::steady_clock;

  uint64_t value() const { return value_.load(std::memory_order_acquire); }

  /// `count` must not be below value(). One caller at a time.
  void raise(uint64_t count);

  /// Returns true once value() >= count, false if that was not so at `until`.
  bool wait_for(uint64_t count, Clock::time_point until);

 private:
  bool sleep_for(uint64_t count, Clock::time_point until);

  std::atomic<uint64_t> value_{0};
  std::atomic<uint32_t> num_sleepers_{0};
  std::atomic<uint32_t> futex_word_{0};  ///< rung when the count rises while someone sleeps
};

static_assert(std::atomic<uint64_t>::is_always_lock_free, "processes cannot share a lock table");

}  // namespace lockstep::dist::mpi
