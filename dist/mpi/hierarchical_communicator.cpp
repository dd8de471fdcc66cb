#include "dist/mpi/hierarchical_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "dist/backend_parts.h"
#include "dist/reduce_in_rank_order.h"

namespace lockstep::dist::mpi {
namespace {

// The longer a wait's chain to a rank that hangs, the later it gives up: first the ranks of that
// rank's own host, then the other hosts' leaders, then who waits for these.
constexpr double kLeadersPatience = 1.25;
constexpr double kResultPatience = 1.5;
constexpr int64_t kSmallBytes = 16 << 10;  // up to here one message to every rank beats six stages

int64_t share_begin(int64_t num_items, int member, int num_members) {
  constexpr int64_t kLineItems = 64;  // whole cache lines in any dtype
  return member == num_members ? num_items
                               : num_items * member / num_members / kLineItems * kLineItems;
}

}  // namespace

/// A part of a tensor on its way; the steps after which it can be read.
struct HierarchicalCommunicator::Chunk {
  std::byte* values = nullptr;
  int64_t num_items = 0;
  int slot = 0, lane = 0;
  uint64_t brought = 0, added_up = 0, reduced = 0;
};

RoomLayout HierarchicalCommunicator::layout_for(const std::vector<int>& hosts_N, int host) {
  const auto num_parts = static_cast<int>(TreeParts::of_hosts(hosts_N).parts_of(host).size());
  return {.num_members = static_cast<int>(std::count(hosts_N.begin(), hosts_N.end(), host)),
          .num_slots = kStages + 2,
          .num_extra = num_parts + 1};
}

HierarchicalCommunicator::HierarchicalCommunicator(std::unique_ptr<P2pCommunicator> flat,
                                                   SharedMemoryGroup group, Hosts hosts,
                                                   const MessageOptions& options)
    : group_(std::move(group)),
      hosts_(std::move(hosts)),
      tree_(TreeParts::of_hosts(hosts_.hosts_N)),
      flat_(std::move(flat)) {
  group_.expect_chains();
  const int host = hosts_.hosts_N[rank()];
  int next_member = 0;
  for (const int i : tree_.parts_of(host)) {
    Part part;
    for (int r = tree_.first_ranks[i]; r < tree_.first_ranks[i + 1]; ++r) {
      part.members.push_back(next_member++);
      part.first_ranks.push_back(r);
    }
    part.first_ranks.push_back(tree_.first_ranks[i + 1]);
    parts_.push_back(std::move(part));
  }
  check(next_member == group_.num_members(), "a host's ranks and its parts of the tree");
  if (hosts_.leaders == nullptr) return;
  leader_transport_ = std::make_unique<MpiTransport>(std::move(*hosts_.leaders));
  leader_mail_ = std::make_unique<P2pChannel>(*leader_transport_, options.direct_ranks);
  leader_mail_->set_limits(options.timeout_s * kLeadersPatience,
                           options.slow_after_s * kLeadersPatience);
  leader_mail_->expect_chains();
  if (leader_mail_->is_direct() || !tree_.are_like_ranks())
    exchange_ = std::make_unique<ChunkedAllReduce>(*leader_mail_, tree_);
  else
    tree_exchange_ = std::make_unique<TreeExchange>(*leader_mail_);
}

double HierarchicalCommunicator::set_timeout(double timeout_s) {
  if (is_leader()) leader_mail_->set_timeout(timeout_s * kLeadersPatience);
  group_.set_timeout(timeout_s);
  return flat_->set_timeout(timeout_s);
}

std::byte* HierarchicalCommunicator::result(const Chunk& chunk) const {
  return group_.extra_slot(static_cast<int>(parts_.size()), chunk.slot);
}

void HierarchicalCommunicator::copy_in(Chunk& chunk) {
  chunk.slot = group_.take_slot();
  std::byte* slot = group_.slot(group_.self(), chunk.slot);
  const int64_t b = format_.out_bytes, end = chunk.num_items * b;
  const int64_t own_begin = share_begin(chunk.num_items, group_.self(), group_.num_members()) * b;
  const int64_t own_end = share_begin(chunk.num_items, group_.self() + 1, group_.num_members()) * b;
  std::memcpy(slot, chunk.values, static_cast<size_t>(own_begin));
  std::memcpy(slot + own_end, chunk.values + own_end, static_cast<size_t>(end - own_end));
  chunk.brought = group_.advance();
}

void HierarchicalCommunicator::reduce(Chunk& chunk) {
  group_.wait_for_all(chunk.brought);
  const int64_t begin = share_begin(chunk.num_items, group_.self(), group_.num_members());
  const int64_t end = share_begin(chunk.num_items, group_.self() + 1, group_.num_members());
  for (size_t p = 0; p < parts_.size(); ++p) {
    inputs_.clear();
    for (const int m : parts_[p].members)
      inputs_.push_back((m == group_.self() ? chunk.values : group_.slot(m, chunk.slot)) +
                        begin * format_.out_bytes);
    reduce_parts({inputs_, parts_[p].first_ranks},
                 group_.extra_slot(static_cast<int>(p), chunk.slot) + begin * format_.in_bytes,
                 end - begin, format_.out, format_.in, format_.op);
  }
  chunk.added_up = group_.advance();
}

void HierarchicalCommunicator::start_scatter(Chunk& chunk) {
  if (!is_leader()) return;
  group_.wait_for_all(chunk.added_up);
  if (exchange_ == nullptr) return;
  inputs_.clear();
  for (size_t p = 0; p < parts_.size(); ++p)
    inputs_.push_back(group_.extra_slot(static_cast<int>(p), chunk.slot));
  exchange_->start_scatter(chunk.lane, inputs_, chunk.num_items, format_);
}

void HierarchicalCommunicator::finish_scatter(Chunk& chunk) {
  if (!is_leader()) return;
  if (tree_exchange_ != nullptr)
    return tree_exchange_->all_reduce(
        group_.extra_slot(0, chunk.slot), result(chunk), chunk.num_items,
        {format_.in, format_.out, format_.in_bytes, format_.out_bytes, format_.op});
  exchange_->finish_scatter(chunk.lane, result(chunk));
  exchange_->start_gather(chunk.lane);
}

void HierarchicalCommunicator::finish_gather(Chunk& chunk) {
  if (exchange_ != nullptr) exchange_->finish_gather(chunk.lane);
  chunk.reduced = group_.advance();
}

void HierarchicalCommunicator::copy_out(const Chunk& chunk) {
  group_.wait_for(0, chunk.reduced, kResultPatience);
  std::memcpy(chunk.values, result(chunk),
              static_cast<size_t>(chunk.num_items * format_.out_bytes));
  group_.release_slot(chunk.slot, group_.num_ticks() + 1);
}

void HierarchicalCommunicator::reduce(std::byte* values, int64_t num_items, const Items& items) {
  const int64_t chunk_items = group_.layout().slot_bytes / format_.in_bytes;
  const int64_t num_chunks = (num_items + chunk_items - 1) / chunk_items;
  std::array<Chunk, kStages> under_way;
  const auto in_stage = [&](int64_t i, int stage) -> Chunk* {
    const int64_t index = i - stage;
    return index >= 0 && index < num_chunks ? &under_way[index % kStages] : nullptr;
  };
  for (int64_t i = 0; i < num_chunks + kStages - 1; ++i) {
    if (Chunk* chunk = in_stage(i, 0)) {
      const int64_t begin = i * chunk_items;
      *chunk = {.values = values + begin * items.item_bytes,
                .num_items = std::min(chunk_items, num_items - begin),
                .lane = static_cast<int>(i % ChunkedAllReduce::kLanes)};
      copy_in(*chunk);
    }
    if (Chunk* chunk = in_stage(i, 1)) reduce(*chunk);
    if (i == 2) flat_->channel().wait_for_notes();
    if (Chunk* chunk = in_stage(i, 2)) start_scatter(*chunk);
    if (Chunk* chunk = in_stage(i, 3)) finish_scatter(*chunk);
    if (Chunk* chunk = in_stage(i, 4)) finish_gather(*chunk);
    if (Chunk* chunk = in_stage(i, 5)) copy_out(*chunk);
  }
}

std::unique_ptr<Work> HierarchicalCommunicator::all_reduce(at::Tensor values_K, ReduceOp op) {
  check_values(values_K, device());
  if (payload_bytes(values_K) <= kSmallBytes) return flat_->all_reduce(std::move(values_K), op);
  bytes_reduced_ += payload_bytes(values_K);
  const Items items = items_of(values_K, op);
  const at::ScalarType wide = accumulator_of(items.dtype);
  format_ = {wide, items.dtype, static_cast<int64_t>(c10::elementSize(wide)), items.item_bytes, op};
  const Call call = call_of(CallKind::kAllReduce, values_K, static_cast<int>(op));
  group_.begin(call);
  flat_->channel().begin(call);  // a rank that does something else may do it by any way
  if (is_leader()) leader_mail_->begin(call);
  reduce(bytes_of(values_K), values_K.numel(), items);
  return std::make_unique<DoneWork>();
}

}  // namespace lockstep::dist::mpi
