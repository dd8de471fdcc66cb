#include "dist/cpu/shared_memory_group.h"

#include <algorithm>
#include <array>
#include <climits>
#include <ctime>
#include <new>

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"

namespace lockstep::dist::cpu {
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

bool SequenceCounter::wait_briefly(uint64_t count, Clock::time_point since) {
  if (value() >= count) return true;
  for (Clock::duration waited{}; waited < kYield; waited = Clock::now() - since) {
    if (waited > kSpin) sched_yield();
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (value() >= count) return true;
      pause_core();
    }
  }
  return false;
}

bool SequenceCounter::wait_for(uint64_t count, Clock::time_point until) {
  return wait_briefly(count, Clock::now()) || sleep_for(count, until);
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

// SharedMemoryGroup: synchronisation by counters. Each member raises its own, and waits for those
// of the others. Slots need no locks, since the step numbers order writes and reads.

using Clock = SequenceCounter::Clock;

// Interval between checks of the members during a wait.
constexpr auto kLookForMembers = std::chrono::milliseconds(10);

static double seconds(Clock::duration span) { return std::chrono::duration<double>(span).count(); }

int64_t SegmentLayout::segment_bytes(int member) const {
  return kPageBytes + num_slots * slot_bytes * (member == 0 ? 1 + num_extra : 1);
}

int64_t SegmentLayout::total_bytes() const {
  return segment_bytes(0) + (num_members - 1) * segment_bytes(1);
}

/// Head of a segment. Calls of odd and even number are separate. No member announces call n + 2
/// before all have read n, since each call waits for the first step of all members.
struct SharedMemoryGroup::Head {
  SequenceCounter steps;
  std::array<Call, 2> calls;
};

SharedMemoryGroup::SharedMemoryGroup(std::vector<std::byte*> segments_M, int self,
                                     SegmentLayout layout, std::vector<Peer> peers_M,
                                     std::shared_ptr<std::byte> memory)
    : PeerWatch(std::move(peers_M)),
      memory_(std::move(memory)),
      segments_M_(std::move(segments_M)),
      self_(self),
      layout_(layout),
      free_after_(layout.num_slots) {
  static_assert(sizeof(Head) <= kPageBytes);
  check(layout_.slot_bytes % kPageBytes == 0, "slots of whole pages");
  for (const std::byte* segment : segments_M_)
    check(reinterpret_cast<uintptr_t>(segment) % kPageBytes == 0, "segments from a page's begin");
  // Each member constructs its own head; a barrier of the caller makes all visible.
  new (segments_M_[self_]) Head;
}

SharedMemoryGroup::Head& SharedMemoryGroup::head(int member) const {
  return *std::launder(reinterpret_cast<Head*>(segments_M_[member]));
}

std::byte* SharedMemoryGroup::slot(int member, int index) const {
  return segments_M_[member] + kPageBytes + index * layout_.slot_bytes;
}

std::byte* SharedMemoryGroup::extra_slot(int extra, int index) const {
  return slot(0, layout_.num_slots * (1 + extra) + index);
}

void SharedMemoryGroup::begin(Call call) {
  call.number = call_.number + 1;
  call_ = call;
  head(self_).calls[call.number % 2] = call;
  first_step_ = num_steps_ + 1;
  calls_compared_ = false;
}

uint64_t SharedMemoryGroup::advance() {
  head(self_).steps.raise(++num_steps_);
  return num_steps_;
}

bool SharedMemoryGroup::wait_briefly(uint64_t step) {
  const Clock::time_point since = Clock::now();
  for (int m = 0; m < num_members(); ++m)
    if (!head(m).steps.wait_briefly(step, since)) return false;
  return true;
}

void SharedMemoryGroup::wait_for_all(uint64_t step) {
  check(step <= num_steps_, "a wait for a step that needs this rank too");
  for (int m = 0; m < num_members(); ++m)
    if (m != self_) wait_for(m, step, 1);
  if (calls_compared_ || step < first_step_) return;
  // The first steps of all members are complete, so their calls are readable.
  calls_compared_ = true;
  for (int m = 0; m < num_members(); ++m)
    require_same_call(call_, peers_[self_].world_rank, head(m).calls[call_.number % 2],
                      peers_[m].world_rank);
}

void SharedMemoryGroup::wait_for(int member, uint64_t step, double patience) {
  if (head(member).steps.value() >= step) return;
  const Clock::time_point start = Clock::now();
  const auto limit = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(timeout_s_ * patience));
  const auto slow_after = std::chrono::duration<double>(slow_after_s_);
  // This look takes some 20 us. Ranks often come meanwhile; asleep, this one would need longer.
  bool is_slow = false, is_gone = missing_rank(member).is_gone;
  for (;;) {
    const Clock::time_point now = Clock::now();
    // A member that is gone gets one last look at its count: it may have made the step before.
    const auto rest = std::min<Clock::duration>(start + limit - now, kLookForMembers);
    if (head(member).steps.wait_for(step, is_gone ? now : now + rest)) return;
    const Clock::duration waited = Clock::now() - start;
    const std::optional<Missing> lost = told_lost();
    if (is_gone || lost || waited >= limit)
      throw_missing(call_, lost ? std::vector{*lost} : missing(step), seconds(waited), in_chains_);
    is_gone = missing_rank(member).is_gone;
    if (!is_slow && waited >= slow_after) tell_slow(call_, missing(step), seconds(waited));
    is_slow = is_slow || waited >= slow_after;
  }
}

/// Returns the members furthest behind. Others that are behind may only wait for these.
std::vector<Missing> SharedMemoryGroup::missing(uint64_t step) const {
  uint64_t least = step;
  for (int m = 0; m < num_members(); ++m) least = std::min(least, head(m).steps.value());
  std::vector<Missing> all;
  for (int m = 0; m < num_members(); ++m)
    if (m != self_ && head(m).steps.value() <= least) all.push_back(missing_rank(m));
  return all;
}

int SharedMemoryGroup::take_slot() {
  const int index = next_slot_;
  next_slot_ = (next_slot_ + 1) % layout_.num_slots;
  wait_for_all(free_after_[index]);
  return index;
}

}  // namespace lockstep::dist::cpu
