#include "dist/mpi/mail.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "base/error.h"
#include "dist/mpi/back_off.h"

namespace lockstep::dist::mpi {
namespace {

using std::chrono::microseconds;

constexpr int kNoteTag = 0;
constexpr auto kLookForPeers = std::chrono::milliseconds(500);

// A rank that has not come may compute for long: sleep. One that has come is sending, and both
// sides must keep asking for bytes to move; but a yield would give the turn away for long.
BackOff for_notes() { return BackOff(microseconds(20)); }
// Between two questions the buffers of sockets must not run empty: at 10 Gbit/s 50 us are 60 KB.
BackOff for_values() { return BackOff(microseconds(20), microseconds(50)); }

int as_count(int64_t num_bytes) {
  check(num_bytes >= 0 && num_bytes <= std::numeric_limits<int>::max(), "a message of 2 GiB");
  return static_cast<int>(num_bytes);
}

}  // namespace

Mail::Mail(const OwnedComm& comm)
    : comm_(comm.get()),
      rank_(comm.rank()),
      num_ranks_(comm.num_ranks()),
      peers_N_(gather_peers(comm)),
      notes_N_(num_ranks_) {
  for (const Peer& peer : peers_N_) seen_here_N_.push_back(is_running_here(peer));
}

void Mail::send(const std::byte* bytes, int64_t num_bytes, int to, int tag, Batch* batch) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Isend(bytes, as_count(num_bytes), MPI_BYTE, to, tag, comm_, &request), "MPI_Isend");
  batch->requests_.push_back(request);
  batch->ranks_.push_back(to);
  batch->is_receive_.push_back(false);
}

void Mail::receive(std::byte* bytes, int64_t num_bytes, int from, int tag, Batch* batch) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Irecv(bytes, as_count(num_bytes), MPI_BYTE, from, tag, comm_, &request),
            "MPI_Irecv");
  batch->requests_.push_back(request);
  batch->ranks_.push_back(from);
  batch->is_receive_.push_back(true);
}

void Mail::begin(Call call, const std::byte* values, int64_t num_bytes) {
  check(num_bytes <= kNoteBytes, "a note too large");
  finish(&notes_sent_, for_notes());
  Note& own = notes_N_[rank_];
  call.number = own.call.number + 1;
  own.call = call;
  if (num_bytes > 0) std::memcpy(own.values, values, static_cast<size_t>(num_bytes));
  for (int step = 1; step < num_ranks_; ++step) {
    const int from = (rank_ + num_ranks_ - step) % num_ranks_;
    receive(reinterpret_cast<std::byte*>(&notes_N_[from]), sizeof(Note), from, kNoteTag,
            &notes_due_);
  }
  const auto note_bytes = static_cast<int64_t>(offsetof(Note, values)) + num_bytes;
  for (int step = 1; step < num_ranks_; ++step)
    send(reinterpret_cast<const std::byte*>(&own), note_bytes, (rank_ + step) % num_ranks_,
         kNoteTag, &notes_sent_);
}

void Mail::wait_for_notes() {
  if (notes_due_.empty()) return;
  finish(&notes_due_, for_notes());
  for (int r = 0; r < num_ranks_; ++r)
    require_same_call(notes_N_[rank_].call, peers_N_[rank_].world_rank, notes_N_[r].call,
                      peers_N_[r].world_rank);
}

const std::byte* Mail::note_values(int r) const { return notes_N_[r].values; }

void Mail::wait(Batch* batch) {
  wait_for_notes();
  finish(batch, for_values());
}

void Mail::finish(Batch* batch, BackOff back_off) {
  BackOff::Clock::duration next_look = kLookForPeers;
  bool seen_gone = false;
  for (int done = 0; !batch->empty();) {
    check_mpi(MPI_Testall(static_cast<int>(batch->requests_.size()), batch->requests_.data(), &done,
                          MPI_STATUSES_IGNORE),
              fmt::format("{}: a message failed: MPI_Testall", text_of(notes_N_[rank_].call)));
    if (done != 0) break;
    back_off.pause();
    if (back_off.waited() < next_look) continue;
    look_after(batch, std::chrono::duration<double>(back_off.waited()).count(), &seen_gone);
    next_look = back_off.waited() + kLookForPeers;
  }
  batch->requests_.clear();
  batch->ranks_.clear();
  batch->is_receive_.clear();
}

/// What a rank sent before it ended still arrives, so it must be seen gone twice.
void Mail::look_after(Batch* batch, double waited_s, bool* seen_gone) const {
  const std::vector<Missing> missing = missing_in(batch);
  if (missing.empty()) return;
  const bool any_gone =
      std::any_of(missing.begin(), missing.end(), [](const Missing& one) { return one.is_gone; });
  if (waited_s >= timeout_s_ || (any_gone && *seen_gone))
    throw_missing(notes_N_[rank_].call, missing, waited_s);
  *seen_gone = any_gone;
}

std::vector<Missing> Mail::missing_in(Batch* batch) const {
  std::vector<bool> waits_for_N(num_ranks_);
  for (const bool is_receive : {true, false}) {  // who sends nothing, else who takes nothing
    for (size_t i = 0; i < batch->requests_.size(); ++i) {
      int done = 0;
      if (batch->is_receive_[i] != is_receive) continue;
      check_mpi(MPI_Test(&batch->requests_[i], &done, MPI_STATUS_IGNORE), "MPI_Test");
      if (done == 0) waits_for_N[batch->ranks_[i]] = true;
    }
    if (std::find(waits_for_N.begin(), waits_for_N.end(), true) != waits_for_N.end()) break;
  }
  std::vector<Missing> missing;
  for (int r = 0; r < num_ranks_; ++r)
    if (waits_for_N[r])
      missing.push_back({peers_N_[r], seen_here_N_[r] && !is_running_here(peers_N_[r])});
  return missing;
}

}  // namespace lockstep::dist::mpi
