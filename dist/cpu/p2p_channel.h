#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "dist/cpu/peer.h"
#include "dist/cpu/rank_group.h"

/// Point-to-point messages between ranks, with notes that find faults.
namespace lockstep::dist::cpu {

/// Messages between the N ranks of a communicator. Each wait has a time limit.
///
/// Every collective begins with notes: each rank tells others which call it makes. So errors name a
/// rank that is late or makes another call. Up to kDirectRanks ranks send notes to all others, with
/// up to kNoteBytes of their values, so that small collectives need no second message. More ranks
/// send to the ranks at distance 1, 2, 4, ..., which is log2 N notes. Different calls are still
/// detected between ranks that exchange notes, and these name a rank that hangs.
/// Order: all ranks make the same sequence of begin() and meet() calls. Messages between two ranks
/// with the same tag arrive in sending order.
/// Threads: one caller at a time.
class P2pChannel : public PeerWatch {
 public:
  static constexpr int64_t kNoteBytes = 4096;
  static constexpr int kDirectRanks = 16;
  /// Longest message in bytes; longer data is sent in parts of this size. Open MPI sends each part
  /// at once (dist/mpi/world.h).
  static constexpr int64_t kPartBytes = 128 << 10;

  /// Pending messages. The object and the bytes must live until wait() has returned.
  class Batch {
   public:
    bool empty() const { return requests_.empty(); }

   private:
    friend class P2pChannel;
    std::vector<Transport::Request> requests_;
    std::vector<int> ranks_;  ///< the other rank of each message
    std::vector<bool> is_receive_;
  };

  /// Exchanges the peers' identities. Collective. The transport must outlive this. direct_ranks:
  /// see above.
  explicit P2pChannel(Transport& transport, int direct_ranks = kDirectRanks);
  P2pChannel(const P2pChannel&) = delete;
  P2pChannel& operator=(const P2pChannel&) = delete;

  int rank() const { return transport_.rank(); }
  int num_ranks() const { return transport_.num_ranks(); }
  /// True if every rank receives every other rank's notes. Otherwise ranks wait in chains.
  bool is_direct() const { return is_direct_; }

  /// Sends the notes of a collective. `values` (up to kNoteBytes, only if is_direct()) are sent
  /// with them.
  void begin(Call call, const std::byte* values = nullptr, int64_t num_bytes = 0);

  /// Waits until all notes for this rank have arrived and its own have left. A note that waits for
  /// its connection moves only while MPI is called. Throws like wait(), and Error(kDisagree) if a
  /// rank makes another call.
  void wait_for_notes();

  /// Calls begin() and wait_for_notes(), and returns once every rank has called it. Unless
  /// is_direct(), ranks that wait for the missing rank itself give up first, then those that wait
  /// for these.
  void meet(Call call);

  /// Returns the values in rank r's note; for r = rank(), those given to begin(). Only if
  /// is_direct().
  const std::byte* note_values(int r) const;

  /// Sends or receives a message in a batch. For more than kPartBytes both sides must pass the same
  /// size; a smaller message may be shorter than its receive buffer.
  void send(const std::byte* bytes, int64_t num_bytes, int to, int tag, Batch* batch);
  void receive(std::byte* bytes, int64_t num_bytes, int from, int tag, Batch* batch);

  /// Waits until the whole batch is done, and empties it. First waits for the notes. Throws
  /// Error(kWatchdog) naming the ranks whose messages were late. Unless is_direct() the limit is a
  /// quarter longer, since these ranks may wait for others. Throws Error(kUnavailable) if they are
  /// known to be gone.
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
  /// Returns the ranks with pending messages of the batch.
  std::vector<Missing> missing_in(Batch* batch) const;
  /// Observations during a wait for a batch.
  struct Seen {
    bool gone = false;  ///< a rank has ended
    bool slow = false;  ///< the slow wait was logged
  };
  void check_peers(Batch* batch, double waited_s, double patience, Seen* seen) const;

  Transport& transport_;
  const bool is_direct_;
  // Senders of notes to this rank, and receivers of its own, by distance: sources_[i] is as far
  // before this rank as targets_[i] is after it.
  std::vector<int> sources_, targets_;
  std::unique_ptr<Note> own_;
  std::vector<Note> notes_;  ///< by source
  Batch notes_sent_, notes_due_;
};

}  // namespace lockstep::dist::cpu
