#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "dist/mpi/peer/collective_signature.h"
#include "dist/mpi/peer/peer.h"
#include "dist/mpi/shm/sequence_counter.h"

namespace lockstep::dist::mpi {

/// Where things lie in the memory that M ranks of one host share: a segment for each of them,
/// holding its head and a ring of slots; member 0's holds further rings, which all may write.
struct RoomLayout {
  int num_members = 1;
  int num_slots = 4;       ///< of a ring
  int num_extra = 0;       ///< further rings in member 0's segment
  int64_t slot_bytes = 0;  ///< a multiple of 4096

  int64_t segment_bytes(int member) const;
  int64_t total_bytes() const;
};

/// The place where M ranks of one host meet: each has slots that all see, and a count of its steps
/// that the others wait for. Knows nothing of what lies in the slots.
///
/// Order: all members make the same sequence of begin(), advance(), wait_for_all() and slot calls,
/// so a step has the same number on all of them. A slot is taken from the ring, filled, announced
/// by advance(), read by the others after wait_for_all() of that step; release_slot() says after
/// which step it may be filled again. Threads: one caller at a time.
class SharedMemoryGroup {
 public:
  /// segments_M[m]: member m's segment, layout.segment_bytes(m) long, where this process sees it,
  /// from a page's begin on; the own one is initialised here. All members must be past their
  /// constructors before the first begin().
  SharedMemoryGroup(std::vector<std::byte*> segments_M, int self, RoomLayout layout,
                    std::vector<Peer> peers_M);

  /// Longest wait for another member; longer ones throw.
  /// A wait that takes slow_after_s is logged, once; one that takes timeout_s throws.
  void set_limits(double timeout_s, double slow_after_s) {
    timeout_s_ = timeout_s;
    slow_after_s_ = slow_after_s;
  }
  /// Returns what it was.
  double set_timeout(double timeout_s) { return std::exchange(timeout_s_, timeout_s); }
  /// Members wait for ranks elsewhere too: one that is behind may wait in turn for one that hangs,
  /// and errors say so.
  void expect_chains() { in_chains_ = true; }

  int self() const { return self_; }
  int num_members() const { return layout_.num_members; }
  const RoomLayout& layout() const { return layout_; }
  const Peer& peer(int member) const { return peers_M_[member]; }

  /// Says what the steps from now on are for; ranks whose calls differ find out in the first
  /// wait_for_all() of this call.
  void begin(Call call);

  /// Announces what this rank wrote and read so far; returns the number of the step.
  uint64_t advance();
  uint64_t num_ticks() const { return num_ticks_; }

  /// Returns once every member has made step `count`. Throws Error(kWatchdog) if some did not
  /// within the time limit, Error(kUnavailable) if their process has ended, Error(kDisagree) if
  /// they make another call.
  void wait_for_all(uint64_t count);

  /// The same for one member, after the first wait_for_all() of a call. `patience` multiplies the
  /// limit: for waits in which that member in turn waits for a rank elsewhere, so that who is
  /// nearest to the missing one names it.
  void wait_for(int member, uint64_t count, double patience);

  /// The index of the next slot of the ring, once every member is done with what was in it.
  int take_slot();
  /// Nobody looks at the slot any more once all have made step `count`.
  void release_slot(int index, uint64_t count) { free_after_[index] = count; }
  /// Member m's slot of that index.
  std::byte* slot(int member, int index) const;
  /// The slot of that index in further ring `extra`.
  std::byte* extra_slot(int extra, int index) const;

 private:
  struct Head;

  Head& head(int member) const;
  void compare_calls();
  std::vector<Missing> missing(uint64_t count) const;
  [[noreturn]] void fail(uint64_t count, double waited_s) const;

  std::vector<std::byte*> segments_M_;
  int self_;
  RoomLayout layout_;
  std::vector<Peer> peers_M_;
  std::vector<bool> seen_here_M_;  ///< whether the end of member m's process can be noticed
  double timeout_s_ = 300, slow_after_s_ = 60;
  bool in_chains_ = false;
  Call call_;
  uint64_t num_ticks_ = 0;
  uint64_t first_tick_ = 0;  ///< of this call
  bool calls_compared_ = true;
  std::vector<uint64_t> free_after_;  ///< by slot
  int next_slot_ = 0;
};

}  // namespace lockstep::dist::mpi
