// Exchange of pieces between all members, lane by lane. Receives start before sends.
#include "dist/cpu/chunked_all_reduce.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "dist/tensor_math.h"

namespace lockstep::dist::cpu {
namespace {

constexpr int kChunkScatterTag = 1;
constexpr int kChunkGatherTag = 2;

/// Appends the largest nodes of the tree under ranks [begin, end) that are on one host each.
void add_parts(const std::vector<int>& hosts_N, int begin, int end, TreeParts* parts) {
  const auto first = hosts_N.begin() + begin, last = hosts_N.begin() + end;
  if (std::all_of(first, last, [&](int host) { return host == *first; })) {
    parts->first_ranks.push_back(begin);
    parts->owners.push_back(*first);
    return;
  }
  const int middle = begin + left_ranks(end - begin);
  add_parts(hosts_N, begin, middle, parts);
  add_parts(hosts_N, middle, end, parts);
}

/// True if the tree of ranks splits parts [first, last) at the same positions as a tree of last -
/// first ranks.
bool parts_like_ranks(const TreeParts& parts, int first, int last) {
  if (last - first < 2) return true;
  const int begin = parts.first_ranks[static_cast<size_t>(first)];
  const int end = parts.first_ranks[static_cast<size_t>(last)];
  const int middle = first + left_ranks(last - first);
  return parts.first_ranks[static_cast<size_t>(middle)] == begin + left_ranks(end - begin) &&
         parts_like_ranks(parts, first, middle) && parts_like_ranks(parts, middle, last);
}

}  // namespace

bool TreeParts::are_like_ranks() const {
  for (size_t i = 0; i < owners.size(); ++i)
    if (owners[i] != static_cast<int>(i)) return false;
  return parts_like_ranks(*this, 0, static_cast<int>(owners.size()));
}

TreeParts TreeParts::of_ranks(int num_ranks) {
  std::vector<int> hosts_N(num_ranks);
  std::iota(hosts_N.begin(), hosts_N.end(), 0);
  return of_hosts(hosts_N);
}

TreeParts TreeParts::of_hosts(const std::vector<int>& hosts_N) {
  TreeParts parts;
  add_parts(hosts_N, 0, static_cast<int>(hosts_N.size()), &parts);
  parts.first_ranks.push_back(static_cast<int>(hosts_N.size()));
  return parts;
}

std::vector<int> TreeParts::parts_of(int member) const {
  std::vector<int> found;
  for (size_t i = 0; i < owners.size(); ++i)
    if (owners[i] == member) found.push_back(static_cast<int>(i));
  return found;
}

ChunkedAllReduce::ChunkedAllReduce(P2pChannel& channel, TreeParts parts)
    : channel_(channel),
      parts_(std::move(parts)),
      ranks_before_(static_cast<size_t>(channel.num_ranks()) + 1),
      inputs_(parts_.owners.size()) {
  for (size_t i = 0; i < parts_.owners.size(); ++i)
    ranks_before_[static_cast<size_t>(parts_.owners[i]) + 1] +=
        parts_.first_ranks[i + 1] - parts_.first_ranks[i];
  std::partial_sum(ranks_before_.begin(), ranks_before_.end(), ranks_before_.begin());
}

int64_t ChunkedAllReduce::piece_begin(const Lane& lane, int member) const {
  if (lane.format.by_ranks)
    return lane.num_items * ranks_before_[static_cast<size_t>(member)] / ranks_before_.back();
  return lane.num_items * member / channel_.num_ranks();
}

void ChunkedAllReduce::start_scatter(int lane_index, std::span<const std::byte* const> sources,
                                     int64_t num_items, const Format& format) {
  Lane& lane = lanes_[lane_index];
  lane.format = format;
  lane.num_items = num_items;
  lane.own_sources.assign(sources.begin(), sources.end());
  const int self = channel_.rank();
  const int64_t own_bytes =
      (piece_begin(lane, self + 1) - piece_begin(lane, self)) * format.in_bytes;
  const size_t needed = static_cast<size_t>(own_bytes) * parts_.owners.size();
  // Grows only, so that a steady step allocates nothing.
  if (lane.received.size() < needed) lane.received.resize(needed);
  for (size_t i = 0; i < parts_.owners.size(); ++i)
    if (parts_.owners[i] != self)
      channel_.receive(lane.received.data() + own_bytes * static_cast<int64_t>(i), own_bytes,
                       parts_.owners[i], kChunkScatterTag, &lane.batch);
  // Each member starts with its right neighbour, so that no member receives from all others at
  // once.
  for (int step = 1; step < channel_.num_ranks(); ++step) {
    const int to = (self + step) % channel_.num_ranks();
    const int64_t begin = piece_begin(lane, to);
    for (const std::byte* source : sources)
      channel_.send(source + begin * format.in_bytes,
                    (piece_begin(lane, to + 1) - begin) * format.in_bytes, to, kChunkScatterTag,
                    &lane.batch);
  }
}

void ChunkedAllReduce::finish_scatter(int lane_index, std::byte* out) {
  Lane& lane = lanes_[lane_index];
  channel_.wait(&lane.batch);
  lane.out = out;
  const Format& format = lane.format;
  const int64_t begin = piece_begin(lane, channel_.rank());
  const int64_t num_items = piece_begin(lane, channel_.rank() + 1) - begin;
  size_t own = 0;
  for (size_t i = 0; i < parts_.owners.size(); ++i)
    // Own parts are read in place, the others from the receive buffer.
    inputs_[i] = parts_.owners[i] == channel_.rank()
                     ? lane.own_sources[own++] + begin * format.in_bytes
                     : lane.received.data() + static_cast<int64_t>(i) * num_items * format.in_bytes;
  reduce_parts({inputs_, parts_.first_ranks}, out + begin * format.out_bytes, num_items, format.in,
               format.out, format.op);
}

void ChunkedAllReduce::start_gather(int lane_index, std::byte* out, int64_t num_items,
                                    const Format& format) {
  Lane& lane = lanes_[lane_index];
  lane.format = format;
  lane.num_items = num_items;
  lane.out = out;
  start_gather(lane_index);
}

void ChunkedAllReduce::start_gather(int lane_index) {
  Lane& lane = lanes_[lane_index];
  const auto piece = [&](int member) {
    const int64_t begin = piece_begin(lane, member);
    return std::pair(lane.out + begin * lane.format.out_bytes,
                     (piece_begin(lane, member + 1) - begin) * lane.format.out_bytes);
  };
  // Receives first, so that arriving data has a destination.
  for (int step = 1; step < channel_.num_ranks(); ++step) {
    const int from = (channel_.rank() + channel_.num_ranks() - step) % channel_.num_ranks();
    channel_.receive(piece(from).first, piece(from).second, from, kChunkGatherTag, &lane.batch);
  }
  for (int step = 1; step < channel_.num_ranks(); ++step) {
    const int to = (channel_.rank() + step) % channel_.num_ranks();
    channel_.send(piece(channel_.rank()).first, piece(channel_.rank()).second, to, kChunkGatherTag,
                  &lane.batch);
  }
}

void ChunkedAllReduce::finish_gather(int lane_index) { channel_.wait(&lanes_[lane_index].batch); }

}  // namespace lockstep::dist::cpu
