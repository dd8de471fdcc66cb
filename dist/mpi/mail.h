#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <mpi.h>

#include "dist/mpi/back_off.h"
#include "dist/mpi/call.h"
#include "dist/mpi/mpi_handles.h"
#include "dist/mpi/peer.h"

namespace lockstep::dist::mpi {

/// Messages between the N ranks of a communicator, each wait with a time limit.
///
/// Every collective begins with a note from each rank to each other: what it is about to do, and up
/// to kNoteBytes of its values. So a rank that does not come, or does something else, is known by
/// its own name, and small collectives need no second message.
/// Order: all ranks make the same sequence of begin() calls; messages between two ranks with the
/// same tag arrive in the order in which they were sent.
/// Threads: one caller at a time.
class Mail {
 public:
  static constexpr int64_t kNoteBytes = 4096;

  /// Messages under way; must live, as the bytes they touch, until wait() has returned.
  class Batch {
   public:
    bool empty() const { return requests_.empty(); }

   private:
    friend class Mail;
    std::vector<MPI_Request> requests_;
    std::vector<int> ranks_;  ///< with whom
    std::vector<bool> is_receive_;
  };

  /// Collective.
  explicit Mail(const OwnedComm& comm);
  Mail(const Mail&) = delete;
  Mail& operator=(const Mail&) = delete;

  /// Longest wait for another rank; longer ones throw.
  void set_timeout_s(double timeout_s) { timeout_s_ = timeout_s; }

  int rank() const { return rank_; }
  int num_ranks() const { return num_ranks_; }

  /// Sends the notes of a collective; `values` (up to kNoteBytes) go with them.
  void begin(Call call, const std::byte* values = nullptr, int64_t num_bytes = 0);

  /// Returns once the notes of all ranks are here. Throws like wait(), and Error(kDisagree) if a
  /// rank makes another call.
  void wait_for_notes();

  /// What rank r sent with its note; for r = rank(), what was given to begin().
  const std::byte* note_values(int r) const;

  void send(const std::byte* bytes, int64_t num_bytes, int to, int tag, Batch* batch);
  void receive(std::byte* bytes, int64_t num_bytes, int from, int tag, Batch* batch);

  /// Returns once the whole batch is done, and empties it. Waits for the notes first. Throws
  /// Error(kWatchdog) naming the ranks whose messages did not come within the time limit,
  /// Error(kUnavailable) if they are known to be gone.
  void wait(Batch* batch);

 private:
  struct Note {
    Call call;
    std::byte values[kNoteBytes];
  };

  void finish(Batch* batch, BackOff back_off);
  /// The ranks of whose messages some are still under way.
  std::vector<Missing> missing_in(Batch* batch) const;
  void look_after(Batch* batch, double waited_s, bool* seen_gone) const;

  MPI_Comm comm_;
  int rank_;
  int num_ranks_;
  std::vector<Peer> peers_N_;
  std::vector<bool> seen_here_N_;
  double timeout_s_ = 300;
  std::vector<Note> notes_N_;
  Batch notes_sent_, notes_due_;
};

}  // namespace lockstep::dist::mpi
