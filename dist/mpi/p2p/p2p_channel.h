#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "dist/mpi/p2p/transport.h"
#include "dist/mpi/peer/back_off.h"
#include "dist/mpi/peer/collective_signature.h"
#include "dist/mpi/peer/peer.h"

namespace lockstep::dist::mpi {

/// Messages between the N ranks of a communicator, each wait with a time limit.
///
/// Every collective begins with notes: each rank says to others what it is about to do. So a rank
/// that does not come, or does something else, is known by its own name. Up to kDirectRanks ranks
/// tell all others, with up to kNoteBytes of their values, so that small collectives need no second
/// message. More ranks tell those 1, 2, 4, ... ranks further, which is log2 N notes: what differs
/// still meets what it differs from, and a rank that hangs is named by these.
/// Order: all ranks make the same sequence of begin() and meet() calls; messages between two ranks
/// with the same tag arrive in the order in which they were sent.
/// Threads: one caller at a time.
class P2pChannel {
 public:
  static constexpr int64_t kNoteBytes = 4096;
  static constexpr int kDirectRanks = 16;
  /// What is longer travels in parts of so many bytes. Open MPI sends a part at once, on one of its
  /// connections in turn (dist/mpi/open_mpi_settings.h).
  static constexpr int64_t kPartBytes = 128 << 10;

  /// Messages under way; must live, as the bytes they touch, until wait() has returned.
  class Batch {
   public:
    bool empty() const { return requests_.empty(); }

   private:
    friend class P2pChannel;
    std::vector<Transport::Request> requests_;
    std::vector<int> ranks_;  ///< with whom
    std::vector<bool> is_receive_;
  };

  /// Collective. The transport must outlive this. direct_ranks: see above.
  explicit P2pChannel(Transport& transport, int direct_ranks = kDirectRanks);
  P2pChannel(const P2pChannel&) = delete;
  P2pChannel& operator=(const P2pChannel&) = delete;

  /// A wait that takes slow_after_s is logged, once; one that takes timeout_s throws.
  void set_limits(double timeout_s, double slow_after_s) {
    timeout_s_ = timeout_s;
    slow_after_s_ = slow_after_s;
  }
  /// Returns what it was.
  double set_timeout(double timeout_s) { return std::exchange(timeout_s_, timeout_s); }
  /// Ranks may wait elsewhere before they come here: who does not come may wait in turn for one
  /// that hangs, and errors say so. They do without this where not every rank gets every other's
  /// notes.
  void expect_chains() { in_chains_ = true; }

  int rank() const { return transport_.rank(); }
  int num_ranks() const { return transport_.num_ranks(); }
  /// Whether every rank gets every other's notes.
  bool is_direct() const { return is_direct_; }

  /// Sends the notes of a collective; `values` (up to kNoteBytes, only if is_direct()) go with
  /// them.
  void begin(Call call, const std::byte* values = nullptr, int64_t num_bytes = 0);

  /// Returns once all notes for this rank are here and its own have left: one that waits for its
  /// connection moves only while MPI is asked to, which a rank that sleeps in shared memory or
  /// computes does not do. Throws like wait(), and Error(kDisagree) if a rank makes another call.
  void wait_for_notes();

  /// begin() and wait_for_notes(), and returns once every rank has called it. Unless is_direct(),
  /// who waits for the rank itself gives up first, then those that wait for these.
  void meet(Call call);

  /// What rank r sent with its note; for r = rank(), what was given to begin(). If is_direct().
  const std::byte* note_values(int r) const;

  /// Of more than kPartBytes both sides pass the same number; else a receive may have more room.
  void send(const std::byte* bytes, int64_t num_bytes, int to, int tag, Batch* batch);
  void receive(std::byte* bytes, int64_t num_bytes, int from, int tag, Batch* batch);

  /// Returns once the whole batch is done, and empties it. Waits for the notes first. Throws
  /// Error(kWatchdog) naming the ranks whose messages did not come within the time limit (a quarter
  /// more unless is_direct(), as these may wait for others in turn), Error(kUnavailable) if they
  /// are known to be gone.
  void wait(Batch* batch);

 private:
  struct Note {
    Call call;
    std::byte values[kNoteBytes];
  };

  void number(Call call);
  void receive_note(size_t source);
  void compare(size_t source) const;
  void finish(Batch* batch, BackOff back_off, double patience = 1);
  bool are_done(Batch* batch) const;
  /// The ranks of whose messages some are still under way.
  std::vector<Missing> missing_in(Batch* batch) const;
  /// What a wait for a batch has seen so far.
  struct Seen {
    bool gone = false;  ///< a rank that has ended
    bool slow = false;  ///< and told so
  };
  void look_after(Batch* batch, double waited_s, double patience, Seen* seen) const;

  Transport& transport_;
  const bool is_direct_;
  bool in_chains_ = !is_direct_;
  std::vector<Peer> peers_N_;
  std::vector<bool> seen_here_N_;
  double timeout_s_ = 300, slow_after_s_ = 60;
  // Whose notes come, in the order of their distance, and who gets this rank's: [i] is as far
  // behind as [i] of the other is ahead.
  std::vector<int> sources_, targets_;
  std::unique_ptr<Note> own_;
  std::vector<Note> notes_;  ///< by source
  Batch notes_sent_, notes_due_;
};

}  // namespace lockstep::dist::mpi
