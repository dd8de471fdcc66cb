#include "dist/mpi/shm/sequence_counter.h"

#include <cerrno>
#include <climits>
#include <ctime>

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace lockstep::dist::mpi {
namespace {

using std::chrono::nanoseconds;

// Waits within one exchange take about as long as copying a piece, some 10 us to 100 us. A sleeping
// rank needs some 50 us to wake. Longer waits are for a peer that computes.
constexpr auto kSpin = std::chrono::microseconds(20);
constexpr auto kYield = std::chrono::microseconds(100);
constexpr int kPausesPerLook = 16;

void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Sleeps while the word equals `seen`. The word is shared by processes, so the futex must not be
/// private.
void futex_wait(std::atomic<uint32_t>* word, uint32_t seen, nanoseconds at_most) {
  const timespec limit{.tv_sec = static_cast<time_t>(at_most.count() / 1'000'000'000),
                       .tv_nsec = static_cast<long>(at_most.count() % 1'000'000'000)};
  // Woken, timed out, interrupted or changed: the caller checks the count in any case.
  static_cast<void>(syscall(SYS_futex, word, FUTEX_WAIT, seen, &limit, nullptr, 0));
}

void futex_wake_all(std::atomic<uint32_t>* word) {
  static_cast<void>(syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0));
}

}  // namespace

void SequenceCounter::raise(uint64_t count) {
  // Sequentially consistent, like the first two accesses of sleep_for(): either the sleeper sees
  // the new count, or this sees the sleeper.
  value_.store(count);
  if (num_sleepers_.load() == 0) return;
  futex_word_.fetch_add(1);
  futex_wake_all(&futex_word_);
}

bool SequenceCounter::wait_for(uint64_t count, Clock::time_point until) {
  if (value() >= count) return true;
  const Clock::time_point start = Clock::now();
  for (Clock::duration waited{}; waited < kYield; waited = Clock::now() - start) {
    if (waited > kSpin) sched_yield();
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (value() >= count) return true;
      pause_core();
    }
  }
  return sleep_for(count, until);
}

bool SequenceCounter::sleep_for(uint64_t count, Clock::time_point until) {
  num_sleepers_.fetch_add(1);
  bool reached = false;
  for (;;) {
    // Read before the count: a raise() after this changes the word, so futex_wait() returns at
    // once.
    const uint32_t heard = futex_word_.load();
    reached = value_.load() >= count;
    const Clock::time_point now = Clock::now();
    if (reached || now >= until) break;
    futex_wait(&futex_word_, heard, until - now);
  }
  num_sleepers_.fetch_sub(1);
  return reached;
}

}  // namespace lockstep::dist::mpi
