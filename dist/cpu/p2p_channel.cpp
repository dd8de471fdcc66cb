#include "dist/cpu/p2p_channel.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "base/error.h"

namespace lockstep::dist::cpu {

// P2pChannel: messages with deadlines. finish() polls the transport and looks for missing ranks
// every kLookForPeers; all waits end there.

using std::chrono::microseconds;

constexpr int kNoteTag = 0;
// Factor on the timeout for ranks that wait for each other in chains.
constexpr double kValuesPatience = 1.25;
constexpr auto kLookForPeers = std::chrono::milliseconds(25);

// A late rank may compute for long: sleep. A rank that has come sends data, and both sides must
// keep polling so that bytes move. A yield would give the core away for too long.
static BackOff for_notes() { return BackOff(microseconds(20)); }
// The socket buffers must not run empty between two polls: at 10 Gbit/s 50 us are 60 KB.
static BackOff for_values() { return BackOff(microseconds(20), microseconds(50)); }

/// Calls start(begin, length) for each part of a message, once for an empty one.
template <typename Start>
static void in_parts(int64_t num_bytes, const Start& start) {
  int64_t begin = 0;
  do {
    const int64_t length = std::min(P2pChannel::kPartBytes, num_bytes - begin);
    start(begin, length);
    begin += length;
  } while (begin < num_bytes);
}

P2pChannel::P2pChannel(Transport& transport, int direct_ranks)
    : PeerWatch(transport.gather_peers()),
      transport_(transport),
      is_direct_(transport.num_ranks() <= direct_ranks),
      own_(std::make_unique<Note>()) {
  if (!is_direct_) expect_chains();
  const int num = num_ranks();
  for (int distance = 1; distance < num; distance = is_direct_ ? distance + 1 : distance * 2) {
    sources_.push_back((rank() + num - distance) % num);
    targets_.push_back((rank() + distance) % num);
  }
  notes_.resize(sources_.size());
}

void P2pChannel::send(const std::byte* bytes, int64_t num_bytes, int to, int tag, Batch* batch) {
  in_parts(num_bytes, [&](int64_t begin, int64_t length) {
    batch->requests_.push_back(transport_.send(bytes + begin, length, to, tag));
    batch->ranks_.push_back(to);
    batch->is_receive_.push_back(false);
  });
}

void P2pChannel::receive(std::byte* bytes, int64_t num_bytes, int from, int tag, Batch* batch) {
  in_parts(num_bytes, [&](int64_t begin, int64_t length) {
    batch->requests_.push_back(transport_.receive(bytes + begin, length, from, tag));
    batch->ranks_.push_back(from);
    batch->is_receive_.push_back(true);
  });
}

void P2pChannel::number(Call call) {
  finish(&notes_sent_, for_notes());  // pending only if the previous call threw
  call.number = own_->call.number + 1;
  own_->call = call;
}

void P2pChannel::receive_note(size_t source) {
  receive(reinterpret_cast<std::byte*>(&notes_[source]), sizeof(Note), sources_[source], kNoteTag,
          &notes_due_);
}

void P2pChannel::begin(Call call, const std::byte* values, int64_t num_bytes) {
  check(num_bytes <= (is_direct_ ? kNoteBytes : 0), "a message too large");
  number(call);
  if (num_bytes > 0) std::memcpy(own_->values, values, static_cast<size_t>(num_bytes));
  // Receives first, so that MPI need not buffer notes.
  for (size_t i = 0; i < sources_.size(); ++i) receive_note(i);
  const auto note_bytes = static_cast<int64_t>(offsetof(Note, values)) + num_bytes;
  for (const int target : targets_)
    send(reinterpret_cast<const std::byte*>(own_.get()), note_bytes, target, kNoteTag,
         &notes_sent_);
}

void P2pChannel::wait_for_notes() {
  if (!notes_due_.empty()) {
    finish(&notes_due_, for_notes());
    for (size_t i = 0; i < sources_.size(); ++i) compare(i);
  }
  finish(&notes_sent_, for_notes());
}

/// Sends each note after the previous ones have arrived, so that it covers twice as many ranks each
/// time.
void P2pChannel::meet(Call call) {
  if (is_direct_) {
    begin(call);
    return wait_for_notes();
  }
  number(call);
  for (size_t i = 0; i < sources_.size(); ++i) {
    receive_note(i);
    send(reinterpret_cast<const std::byte*>(own_.get()), offsetof(Note, values), targets_[i],
         kNoteTag, &notes_sent_);
    finish(&notes_due_, for_notes(), i == 0 ? 1 : kValuesPatience);
    compare(i);
  }
  finish(&notes_sent_, for_notes());
}

void P2pChannel::compare(size_t source) const {
  require_same_call(own_->call, peers_[rank()].world_rank, notes_[source].call,
                    peers_[sources_[source]].world_rank);
}

const std::byte* P2pChannel::note_values(int r) const {
  if (r == rank()) return own_->values;
  return notes_[static_cast<size_t>((rank() + num_ranks() - r) % num_ranks() - 1)].values;
}

void P2pChannel::wait(Batch* batch) {
  wait_for_notes();
  finish(batch, for_values(), is_direct_ ? 1 : kValuesPatience);
}

bool P2pChannel::are_done(Batch* batch) const {
  try {
    return transport_.test_all(batch->requests_);
  } catch (Error& error) {
    error.append(fmt::format(" (a message of {} failed)", text_of(own_->call)));
    throw;
  }
}

void P2pChannel::finish(Batch* batch, BackOff back_off, double patience) {
  BackOff::Clock::duration next_look = kLookForPeers;
  Seen seen;
  while (!batch->empty() && !are_done(batch)) {
    back_off.pause();
    if (back_off.waited() < next_look) continue;
    check_peers(batch, std::chrono::duration<double>(back_off.waited()).count(), patience, &seen);
    next_look = back_off.waited() + kLookForPeers;
  }
  batch->requests_.clear();
  batch->ranks_.clear();
  batch->is_receive_.clear();
}

/// Throws or logs if ranks are missing. Data sent before a rank ended may still arrive, so the rank
/// must be seen gone twice.
void P2pChannel::check_peers(Batch* batch, double waited_s, double patience, Seen* seen) const {
  std::vector<Missing> missing = missing_in(batch);
  if (missing.empty()) return;
  if (const std::optional<Missing> lost = told_lost()) missing = {*lost};
  const bool any_gone = std::ranges::any_of(missing, &Missing::is_gone);
  if (waited_s >= timeout_s_ * patience || (any_gone && seen->gone))
    throw_missing(own_->call, missing, waited_s, in_chains_);
  seen->gone = any_gone;
  if (!seen->slow && waited_s >= slow_after_s_ * patience) {
    tell_slow(own_->call, missing, waited_s);
    seen->slow = true;
  }
}

std::vector<Missing> P2pChannel::missing_in(Batch* batch) const {
  std::vector<bool> waits_for_N(num_ranks());
  // First the ranks that send nothing; if there are none, the ranks that receive nothing.
  for (const bool is_receive : {true, false}) {
    for (size_t i = 0; i < batch->requests_.size(); ++i)
      if (batch->is_receive_[i] == is_receive && !transport_.test(&batch->requests_[i]))
        waits_for_N[batch->ranks_[i]] = true;
    if (std::find(waits_for_N.begin(), waits_for_N.end(), true) != waits_for_N.end()) break;
  }
  std::vector<Missing> missing;
  for (int r = 0; r < num_ranks(); ++r)
    if (waits_for_N[r]) missing.push_back(missing_rank(r));
  return missing;
}

}  // namespace lockstep::dist::cpu
