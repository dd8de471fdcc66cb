// Collectives between ranks on several hosts.
#include "dist/cpu/hierarchical_communicator.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "dist/tensor_math.h"

namespace lockstep::dist::cpu {

// Placement of ranks on hosts, agreed by two small collectives.

int Hosts::num_hosts() const { return 1 + *std::max_element(hosts_N.begin(), hosts_N.end()); }

std::vector<int> Hosts::places_N() const {
  std::vector<int> places(hosts_N.size());
  int next = 0;
  for (int host = 0; host < num_hosts(); ++host)
    for (size_t r = 0; r < hosts_N.size(); ++r)
      if (hosts_N[r] == host) places[r] = next++;
  return places;
}

Hosts find_hosts(const RankGroup& all, const RankGroup& host) {
  Hosts hosts;
  const bool is_leader = host.rank() == 0;
  // The leaders' group numbers the hosts by their first ranks.
  std::unique_ptr<RankGroup> group = all.split(is_leader ? 0 : 1, all.rank());
  const int number = gather(host, is_leader ? group->rank() : 0).front();
  hosts.hosts_N = gather(all, number);
  if (is_leader) hosts.leaders = std::move(group);
  return hosts;
}

// HostExchange: run_stages() is the pipeline copy_in, reduce, start_exchange, finish_scatter,
// finish_gather, copy_out. Chunk i is in stage s while chunk i + 1 is in stage s - 1. Only the
// leader acts in the middle stages; steps of the group tell the other members when to read.

namespace {

// Factors on the timeout, so that the ranks nearest to a hanging rank fail first and name it. First
// come its own host's ranks, then the other hosts' leaders, then the ranks that wait for these.
constexpr double kLeadersPatience = 1.25;
constexpr double kResultPatience = 1.5;

int64_t share_begin(int64_t num_items, int member, int num_members) {
  constexpr int64_t kLineItems = 64;  // whole cache lines in any dtype
  return member == num_members ? num_items
                               : num_items * member / num_members / kLineItems * kLineItems;
}

}  // namespace

/// A part of a tensor in transit, or the same part of each piece. The counts are steps after which
/// its data may be read.
struct HostExchange::Chunk {
  int64_t begin = 0, run_items = 0;  ///< of the tensor, or of each piece
  int64_t num_items = 0;             ///< all runs together
  int slot = 0, lane = 0;
  uint64_t copied_in = 0, added_up = 0, complete = 0;
};

SegmentLayout HostExchange::layout_for(const std::vector<int>& hosts_N, int host) {
  const auto num_parts = static_cast<int>(TreeParts::of_hosts(hosts_N).parts_of(host).size());
  return {.num_members = static_cast<int>(std::count(hosts_N.begin(), hosts_N.end(), host)),
          .num_slots = kStages + 2,
          .num_extra = num_parts + 1};
}

HostExchange::HostExchange(P2pChannel& notes, SharedMemoryGroup group, Hosts hosts,
                           const CommunicatorOptions& options)
    : notes_(notes),
      group_(std::move(group)),
      hosts_(std::move(hosts)),
      tree_(TreeParts::of_hosts(hosts_.hosts_N)),
      places_N_(hosts_.places_N()) {
  group_.expect_chains();
  // Members of the group are the host's ranks in ascending order, as are its parts of the tree.
  int next_member = 0;
  for (const int i : tree_.parts_of(hosts_.hosts_N[self()])) {
    Part part;
    for (int r = tree_.first_ranks[i]; r < tree_.first_ranks[i + 1]; ++r) {
      part.members.push_back(next_member++);
      part.first_ranks.push_back(r);
    }
    part.first_ranks.push_back(tree_.first_ranks[i + 1]);
    parts_.push_back(std::move(part));
  }
  check(next_member == group_.num_members(), "a host's ranks and its parts of the tree");
  sends_direct_ = hosts_.num_hosts() <= options.direct_ranks || !tree_.are_like_ranks();
  if (hosts_.leaders == nullptr) return;
  leader_transport_ = hosts_.leaders->make_transport();
  leader_mail_ = std::make_unique<P2pChannel>(*leader_transport_, options.direct_ranks);
  leader_mail_->set_limits(options.timeout_s * kLeadersPatience,
                           options.slow_after_s * kLeadersPatience);
  leader_mail_->set_find_lost(options.find_lost);
  leader_mail_->expect_chains();
  if (sends_direct_)
    exchange_ = std::make_unique<ChunkedAllReduce>(*leader_mail_, tree_);
  else
    tree_exchange_ = std::make_unique<TreeExchange>(*leader_mail_);
}

void HostExchange::set_timeout(double timeout_s) {
  if (is_leader()) leader_mail_->set_timeout(timeout_s * kLeadersPatience);
  group_.set_timeout(timeout_s);
}

bool HostExchange::can_scatter(int64_t item_bytes) const {
  // Partial sums of 16-bit floats are float32.
  const int64_t widest_bytes = std::max<int64_t>(item_bytes, sizeof(float));
  return sends_direct_ && group_.layout().slot_bytes >= widest_bytes * num_ranks();
}

std::byte* HostExchange::result(const Chunk& chunk) const {
  return group_.extra_slot(static_cast<int>(parts_.size()), chunk.slot);
}

int64_t HostExchange::offset_in_tensor(const Chunk& chunk, int r) const {
  return (r * job_.num_items + chunk.begin) * job_.format.out_bytes;
}

int64_t HostExchange::offset_in_chunk(const Chunk& chunk, int r) const {
  return places_N_[r] * chunk.run_items * job_.format.out_bytes;
}

/// Copies all but the share that this rank reduces, which it reads in place.
void HostExchange::copy_in_shares(const Chunk& chunk) {
  std::byte* slot = group_.slot(group_.self(), chunk.slot);
  const int64_t b = job_.format.out_bytes, end = chunk.num_items * b;
  const std::byte* values = job_.values + chunk.begin * b;
  const int64_t own_begin = share_begin(chunk.num_items, group_.self(), group_.num_members()) * b;
  const int64_t own_end = share_begin(chunk.num_items, group_.self() + 1, group_.num_members()) * b;
  std::memcpy(slot, values, static_cast<size_t>(own_begin));
  std::memcpy(slot + own_end, values + own_end, static_cast<size_t>(end - own_end));
}

void HostExchange::copy_in_pieces(const Chunk& chunk) {
  const auto run_bytes = static_cast<size_t>(chunk.run_items * job_.format.out_bytes);
  if (!job_.reduces()) {
    std::memcpy(result(chunk) + offset_in_chunk(chunk, self()),
                job_.values + chunk.begin * job_.format.out_bytes, run_bytes);
    return;
  }
  std::byte* slot = group_.slot(group_.self(), chunk.slot);
  for (int r = 0; r < num_ranks(); ++r)
    std::memcpy(slot + offset_in_chunk(chunk, r), job_.values + offset_in_tensor(chunk, r),
                run_bytes);
}

void HostExchange::copy_in(Chunk& chunk) {
  chunk.slot = group_.take_slot();
  job_.has_pieces() ? copy_in_pieces(chunk) : copy_in_shares(chunk);
  chunk.copied_in = group_.advance();
}

void HostExchange::reduce(Chunk& chunk) {
  // all_gather has no sums: reading may start when all have copied in.
  chunk.added_up = chunk.copied_in;
  if (!job_.reduces()) return;
  group_.wait_for_all(chunk.copied_in);
  const ChunkedAllReduce::Format& format = job_.format;
  const int64_t begin = share_begin(chunk.num_items, group_.self(), group_.num_members());
  const int64_t end = share_begin(chunk.num_items, group_.self() + 1, group_.num_members());
  const auto input_of = [&](int member) {
    return member == group_.self() && !job_.has_pieces()
               ? job_.values + chunk.begin * format.out_bytes
               : group_.slot(member, chunk.slot);
  };
  for (size_t p = 0; p < parts_.size(); ++p) {
    inputs_.clear();
    for (const int m : parts_[p].members) inputs_.push_back(input_of(m) + begin * format.out_bytes);
    reduce_parts({inputs_, parts_[p].first_ranks},
                 group_.extra_slot(static_cast<int>(p), chunk.slot) + begin * format.in_bytes,
                 end - begin, format.out, format.in, format.op);
  }
  chunk.added_up = group_.advance();
}

void HostExchange::start_exchange(Chunk& chunk) {
  if (!is_leader()) return;
  group_.wait_for_all(chunk.added_up);
  if (exchange_ == nullptr) return;
  if (!job_.reduces())
    return exchange_->start_gather(chunk.lane, result(chunk), chunk.num_items, job_.format);
  inputs_.clear();
  for (size_t p = 0; p < parts_.size(); ++p)
    inputs_.push_back(group_.extra_slot(static_cast<int>(p), chunk.slot));
  exchange_->start_scatter(chunk.lane, inputs_, chunk.num_items, job_.format);
}

void HostExchange::finish_scatter(Chunk& chunk) {
  if (!is_leader() || !job_.reduces()) return;
  const ChunkedAllReduce::Format& format = job_.format;
  if (tree_exchange_ != nullptr)
    return tree_exchange_->all_reduce(group_.extra_slot(0, chunk.slot), result(chunk),
                                      chunk.num_items, format);
  // Writes the leader's piece of the result into shared memory.
  exchange_->finish_scatter(chunk.lane, result(chunk));
  if (job_.gathers()) exchange_->start_gather(chunk.lane);
}

void HostExchange::finish_gather(Chunk& chunk) {
  if (exchange_ != nullptr && job_.gathers()) exchange_->finish_gather(chunk.lane);
  // The result is complete in shared memory; members may copy it out.
  chunk.complete = group_.advance();
}

void HostExchange::copy_out(const Chunk& chunk) {
  group_.wait_for_all(chunk.added_up);  // in all_gather the first wait of most members
  group_.wait_for(0, chunk.complete, kResultPatience);
  const int64_t b = job_.format.out_bytes;
  const std::byte* from = result(chunk);
  const auto run_bytes = static_cast<size_t>(chunk.run_items * b);
  if (!job_.has_pieces()) {
    std::memcpy(job_.out + chunk.begin * b, from, run_bytes);
  } else if (job_.reduces()) {
    std::memcpy(job_.out + chunk.begin * b, from + offset_in_chunk(chunk, self()), run_bytes);
  } else {
    for (int r = 0; r < num_ranks(); ++r)
      std::memcpy(job_.out + offset_in_tensor(chunk, r), from + offset_in_chunk(chunk, r),
                  run_bytes);
  }
  // The step after this one: all members have copied out by then.
  group_.release_slot(chunk.slot, group_.num_steps() + 1);
}

void HostExchange::run_stages() {
  const int64_t num_runs = job_.has_pieces() ? num_ranks() : 1;
  const int64_t widest_bytes =
      std::max(job_.reduces() ? job_.format.in_bytes : 0, job_.format.out_bytes);
  const int64_t run_items = group_.layout().slot_bytes / widest_bytes / num_runs;
  const int64_t num_chunks = (job_.num_items + run_items - 1) / run_items;
  std::array<Chunk, kStages> under_way;
  const auto in_stage = [&](int64_t i, int stage) -> Chunk* {
    const int64_t index = i - stage;
    return index >= 0 && index < num_chunks ? &under_way[index % kStages] : nullptr;
  };
  for (int64_t i = 0; i < num_chunks + kStages - 1; ++i) {
    if (Chunk* chunk = in_stage(i, 0)) {
      const int64_t begin = i * run_items, here = std::min(run_items, job_.num_items - begin);
      *chunk = {.begin = begin,
                .run_items = here,
                .num_items = here * num_runs,
                .lane = static_cast<int>(i % ChunkedAllReduce::kLanes)};
      copy_in(*chunk);
    }
    if (Chunk* chunk = in_stage(i, 1)) reduce(*chunk);
    // Late, so that notes arrive during the first chunks' work. Before any data leaves the host.
    if (i == 2) notes_.wait_for_notes();
    if (Chunk* chunk = in_stage(i, 2)) start_exchange(*chunk);
    if (Chunk* chunk = in_stage(i, 3)) finish_scatter(*chunk);
    if (Chunk* chunk = in_stage(i, 4)) finish_gather(*chunk);
    if (Chunk* chunk = in_stage(i, 5)) copy_out(*chunk);
  }
}

void HostExchange::run(const Call& call, const at::Tensor& values, const at::Tensor& out,
                       ReduceOp op) {
  const Items items = items_of(values, op);
  const bool has_pieces = call.kind != CallKind::kAllReduce;
  check(!has_pieces || can_scatter(items.item_bytes), "can_scatter()");
  group_.begin(call);
  // A rank that makes another call may use another path, so all paths send notes.
  notes_.begin(call);
  if (is_leader()) leader_mail_->begin(call);
  job_ = {call.kind, bytes_of(values), bytes_of(out), call.num_items,
          SumFormat::of(items, has_pieces)};
  run_stages();
}

// HierarchicalCommunicator: chooses between the exchange by hosts (large tensors) and flat
// messages. The choice depends on sizes alone, so all ranks make the same one.

constexpr int64_t kSmallBytes = 16 << 10;  // up to here one message to every rank beats six stages

bool HierarchicalCommunicator::goes_by_hosts(const at::Tensor& piece_K) const {
  return payload_bytes(piece_K) * world_size() > kSmallBytes &&
         exchange_.can_scatter(static_cast<int64_t>(piece_K.itemsize()));
}

std::unique_ptr<Work> HierarchicalCommunicator::all_reduce(at::Tensor values_K, ReduceOp op) {
  check_values(values_K, device());
  if (payload_bytes(values_K) <= kSmallBytes)
    return P2pCommunicator::all_reduce(std::move(values_K), op);
  bytes_reduced_ += payload_bytes(values_K);
  exchange_.run(call_of(CallKind::kAllReduce, values_K, static_cast<int>(op)), values_K, values_K,
                op);
  return std::make_unique<DoneWork>();
}

std::unique_ptr<Work> HierarchicalCommunicator::reduce_scatter(at::Tensor out_K,
                                                               at::Tensor values_NK) {
  check_pieces(out_K, values_NK, world_size(), device());
  if (!goes_by_hosts(out_K))
    return P2pCommunicator::reduce_scatter(std::move(out_K), std::move(values_NK));
  bytes_reduced_ += payload_bytes(values_NK);
  exchange_.run(call_of(CallKind::kReduceScatter, out_K), values_NK, out_K, ReduceOp::kSum);
  return std::make_unique<DoneWork>();
}

std::unique_ptr<Work> HierarchicalCommunicator::all_gather(at::Tensor out_NK, at::Tensor values_K) {
  check_pieces(values_K, out_NK, world_size(), device());
  if (!goes_by_hosts(values_K))
    return P2pCommunicator::all_gather(std::move(out_NK), std::move(values_K));
  exchange_.run(call_of(CallKind::kAllGather, values_K), values_K, out_NK, ReduceOp::kSum);
  return std::make_unique<DoneWork>();
}

}  // namespace lockstep::dist::cpu
