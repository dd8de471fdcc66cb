#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "dist/cpu/peer.h"

/// Exchange between the ranks of one host through shared memory: counter, layout and group.
namespace lockstep::dist::cpu {

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

  /// Returns true once value() >= count, false if that is not so after a wait without a sleep,
  /// which began at `since`.
  bool wait_briefly(uint64_t count, Clock::time_point since);
  /// Returns true once value() >= count, false if that is not so at `until`.
  bool wait_for(uint64_t count, Clock::time_point until);

 private:
  bool sleep_for(uint64_t count, Clock::time_point until);

  std::atomic<uint64_t> value_{0};
  std::atomic<uint32_t> num_sleepers_{0};
  std::atomic<uint32_t> futex_word_{0};  ///< changed when the count rises while a rank sleeps
};

static_assert(std::atomic<uint64_t>::is_always_lock_free, "processes cannot share a lock table");

inline constexpr int64_t kPageBytes = 4096;

/// Layout of the memory that M ranks of one host share: a segment per rank, with its head and a
/// ring of slots. Member 0's segment contains further rings, which all ranks may write.
struct SegmentLayout {
  int num_members = 1;
  int num_slots = 4;       ///< of a ring
  int num_extra = 0;       ///< further rings in member 0's segment
  int64_t slot_bytes = 0;  ///< a multiple of 4096

  int64_t segment_bytes(int member) const;
  int64_t total_bytes() const;
};

/// Meeting point of M ranks of one host: each has slots that all ranks see, and a step number that
/// the others wait for. Independent of the contents of slots.
///
/// Order: all members make the same sequence of begin(), advance(), wait_for_all() and slot calls,
/// so a step has the same number on all of them. A slot is taken from the ring, filled, and
/// announced by advance(). The others read it after wait_for_all() of that step. release_slot()
/// sets the step after which it may be filled again. Threads: one caller at a time.
class SharedMemoryGroup : public PeerWatch {
 public:
  /// segments_M[m]: member m's segment in this process, page-aligned, layout.segment_bytes(m) long.
  /// The own segment is initialised here. All members must have finished their constructors before
  /// the first begin().
  /// memory: keeps the segments mapped; null if the caller does.
  SharedMemoryGroup(std::vector<std::byte*> segments_M, int self, SegmentLayout layout,
                    std::vector<Peer> peers_M, std::shared_ptr<std::byte> memory = nullptr);

  int self() const { return self_; }
  int num_members() const { return layout_.num_members; }
  const SegmentLayout& layout() const { return layout_; }

  /// Declares the call of the following steps. Different calls of ranks are detected in the first
  /// wait_for_all() of the call.
  void begin(Call call);

  /// Announces this rank's writes and reads so far; returns the number of the step.
  uint64_t advance();
  uint64_t num_steps() const { return num_steps_; }

  /// True if every member has made this step, now or after a wait without a sleep.
  bool wait_briefly(uint64_t step);
  /// Waits until every member has made this step. Throws Error(kWatchdog) if some did not within
  /// the time limit, Error(kUnavailable) if their process has ended, Error(kDisagree) if they make
  /// another call.
  void wait_for_all(uint64_t step);

  /// Waits for one member, after the first wait_for_all() of a call. `patience` multiplies the
  /// limit. Pass more than 1 if that member itself waits for another host. So the rank nearest to
  /// the missing one fails first and names it.
  void wait_for(int member, uint64_t step, double patience);

  /// Returns the index of the ring's next slot, once every member has released its old contents.
  int take_slot();
  /// Allows reuse of the slot once all members have made this step.
  void release_slot(int index, uint64_t step) { free_after_[index] = step; }
  /// Returns member m's slot with this index.
  std::byte* slot(int member, int index) const;
  /// Returns the slot with this index in further ring `extra`.
  std::byte* extra_slot(int extra, int index) const;

 private:
  struct Head;

  Head& head(int member) const;
  std::vector<Missing> missing(uint64_t step) const;

  std::shared_ptr<std::byte> memory_;
  std::vector<std::byte*> segments_M_;
  int self_;
  SegmentLayout layout_;
  Call call_;
  uint64_t num_steps_ = 0;
  uint64_t first_step_ = 0;  ///< first step of this call
  bool calls_compared_ = true;
  std::vector<uint64_t> free_after_;  ///< by slot
  int next_slot_ = 0;
};

}  // namespace lockstep::dist::cpu
