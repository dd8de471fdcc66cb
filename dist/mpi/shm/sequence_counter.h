#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace lockstep::dist::mpi {

/// A counter in memory shared by several processes: one rank raises it, others wait for it.
///
/// Memory that the raising rank wrote before raise() is visible to every rank that saw the count. A
/// waiting rank spins for some microseconds, then yields its core, then sleeps in the kernel. So it
/// takes no time from a rank that computes on the same core. raise() needs a system call only if a
/// rank sleeps.
class alignas(64) SequenceCounter {
 public:
  using Clock = std::chrono::steady_clock;

  uint64_t value() const { return value_.load(std::memory_order_acquire); }

  /// `count` must not be below value(). One caller at a time.
  void raise(uint64_t count);

  /// Returns true once value() >= count, false if that is not so at `until`.
  bool wait_for(uint64_t count, Clock::time_point until);

 private:
  bool sleep_for(uint64_t count, Clock::time_point until);

  std::atomic<uint64_t> value_{0};
  std::atomic<uint32_t> num_sleepers_{0};
  std::atomic<uint32_t> futex_word_{0};  ///< changed when the count rises while a rank sleeps
};

static_assert(std::atomic<uint64_t>::is_always_lock_free, "processes cannot share a lock table");

}  // namespace lockstep::dist::mpi
