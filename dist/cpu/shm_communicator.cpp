// Each function enqueues steps of the group in the same order on all ranks: copy in, advance, wait,
// read.
#include "dist/cpu/shm_communicator.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "dist/cpu/shared_memory.h"
#include "dist/tensor_math.h"

namespace lockstep::dist::cpu {
namespace {

constexpr int64_t kOneStageBytes = 64 << 10;  // total bytes up to which one stage beats three
constexpr int64_t kBriefBytes = 256 << 10;    // up to it copying in takes less than waking a thread
constexpr int64_t kLineBytes = 64;            // shares start at cache lines of a slot

void copy_bytes(std::byte* to, const std::byte* from, int64_t num_bytes) {
  if (num_bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(num_bytes));
}

}  // namespace

/// A part of a tensor in transit through the group.
struct ShmCommunicator::Chunk {
  std::byte* values = nullptr;
  int64_t num_bytes = 0;
  int slot = 0;
  uint64_t copied_in = 0, reduced = 0;  ///< the steps after which it can be read

  /// Returns the start of rank m's share of M; share M starts at the end.
  int64_t share_begin(int m, int num_members) const {
    return m == num_members ? num_bytes : num_bytes * m / num_members / kLineBytes * kLineBytes;
  }
};

ShmCommunicator::ShmCommunicator(std::unique_ptr<RankGroup> ranks, SharedMemoryGroup group,
                                 MakeCommunicator make, int64_t reserved_bytes)
    : ranks_(std::move(ranks)),
      group_(std::move(group)),
      make_(std::move(make)),
      reserved_bytes_(reserved_bytes),
      runs_M_(group_.num_members()) {}

template <typename CopyIn, typename Read>
void ShmCommunicator::exchange(int64_t num_items, int64_t chunk_items, const CopyIn& copy_in,
                               const Read& read) {
  int64_t begin = 0;
  do {
    const int64_t num_here = std::min(chunk_items, num_items - begin);
    const int slot = group_.take_slot();
    copy_in(begin, num_here, group_.slot(rank(), slot));
    const uint64_t copied_in = group_.advance();
    group_.wait_for_all(copied_in);
    read(begin, num_here, slot);
    // copied_in + 1: the next step of a member means that it has read this slot.
    group_.release_slot(slot, copied_in + 1);
    begin += num_here;
  } while (begin < num_items);
}

void ShmCommunicator::reduce_slots(int slot, int64_t offset_bytes, const std::byte* own,
                                   std::byte* out, std::byte* also_out, int64_t num_items,
                                   const Items& items) {
  for (int m = 0; m < world_size(); ++m)
    runs_M_[m] = m == rank() ? own : group_.slot(m, slot) + offset_bytes;
  reduce_in_rank_order(runs_M_, out, num_items, items.dtype, items.op, also_out);
}

bool ShmCommunicator::is_one_stage(int64_t num_bytes) const {
  return num_bytes <= std::min(kOneStageBytes / world_size(), group_.layout().slot_bytes);
}

void ShmCommunicator::begin_whole(Chunk& chunk) {
  chunk.slot = group_.take_slot();
  copy_bytes(group_.slot(rank(), chunk.slot), chunk.values, chunk.num_bytes);
  chunk.copied_in = group_.advance();
}

void ShmCommunicator::reduce_whole(const Chunk& chunk, const Items& items) {
  group_.wait_for_all(chunk.copied_in);
  reduce_slots(chunk.slot, 0, chunk.values, chunk.values, nullptr,
               chunk.num_bytes / items.item_bytes, items);
  group_.release_slot(chunk.slot, chunk.copied_in + 1);
}

std::byte* ShmCommunicator::result_slot(int m, int slot) const {
  // Not the own slot: other ranks' copies of share m are in all slots but m's.
  return group_.slot(m == 0 ? 1 : 0, slot);
}

void ShmCommunicator::copy_in_shares(Chunk& chunk) {
  chunk.slot = group_.take_slot();
  std::byte* slot = group_.slot(rank(), chunk.slot);
  // All but the own share, which this rank reads from the tensor.
  const int64_t own_begin = chunk.share_begin(rank(), world_size());
  const int64_t own_end = chunk.share_begin(rank() + 1, world_size());
  copy_bytes(slot, chunk.values, own_begin);
  copy_bytes(slot + own_end, chunk.values + own_end, chunk.num_bytes - own_end);
  chunk.copied_in = group_.advance();
}

void ShmCommunicator::reduce_share(Chunk& chunk, const Items& items) {
  const int64_t begin = chunk.share_begin(rank(), world_size());
  const int64_t num_bytes = chunk.share_begin(rank() + 1, world_size()) - begin;
  group_.wait_for_all(chunk.copied_in);
  // In place: the own share of the tensor is an input and receives the result.
  std::byte* own = chunk.values + begin;
  reduce_slots(chunk.slot, begin, own, own, result_slot(rank(), chunk.slot) + begin,
               num_bytes / items.item_bytes, items);
  chunk.reduced = group_.advance();
}

void ShmCommunicator::take_shares(const Chunk& chunk) {
  group_.wait_for_all(chunk.reduced);
  for (int m = 0; m < world_size(); ++m) {
    if (m == rank()) continue;
    const int64_t begin = chunk.share_begin(m, world_size());
    copy_bytes(chunk.values + begin, result_slot(m, chunk.slot) + begin,
               chunk.share_begin(m + 1, world_size()) - begin);
  }
  group_.release_slot(chunk.slot, group_.num_steps() + 1);
}

void ShmCommunicator::reduce_by_shares(std::byte* values, int64_t num_items, const Items& items) {
  const int64_t num_bytes = num_items * items.item_bytes, chunk_bytes = group_.layout().slot_bytes;
  const int64_t num_chunks = (num_bytes + chunk_bytes - 1) / chunk_bytes;
  // A slot stays in use for three rounds; the ring has four.
  std::array<Chunk, 3> under_way;  // one in each stage
  for (int64_t i = 0; i < num_chunks + 2; ++i) {
    if (i < num_chunks) {
      const int64_t begin = i * chunk_bytes;
      under_way[i % 3] = {values + begin, std::min(chunk_bytes, num_bytes - begin)};
      copy_in_shares(under_way[i % 3]);
    }
    if (i >= 1 && i <= num_chunks) reduce_share(under_way[(i - 1) % 3], items);
    if (i >= 2) take_shares(under_way[(i - 2) % 3]);
  }
}

/// An all_reduce of one chunk whose first stage is done. Later stages wait only for ranks that have
/// begun it, and these finish without further input.
class ShmCommunicator::Begun final : public Work {
 public:
  Begun(ShmCommunicator& comm, at::Tensor values_K, ReduceOp op)
      : comm_(comm),
        values_K_(std::move(values_K)),
        items_(items_of(values_K_, op)),
        is_one_stage_(comm.is_one_stage(payload_bytes(values_K_))),
        chunk_{bytes_of(values_K_), payload_bytes(values_K_)} {
    is_one_stage_ ? comm_.begin_whole(chunk_) : comm_.copy_in_shares(chunk_);
  }

  bool wait_briefly() override { return comm_.group_.wait_briefly(chunk_.copied_in); }

  void wait() override {
    if (is_one_stage_) return comm_.reduce_whole(chunk_, items_);
    comm_.reduce_share(chunk_, items_);
    comm_.take_shares(chunk_);
  }

 private:
  ShmCommunicator& comm_;
  const at::Tensor values_K_;
  const Items items_;
  const bool is_one_stage_;
  Chunk chunk_;
};

std::unique_ptr<Work> ShmCommunicator::begin_all_reduce(at::Tensor values_K, ReduceOp op) {
  if (payload_bytes(values_K) > std::min(kBriefBytes, group_.layout().slot_bytes)) return nullptr;
  check_values(values_K, device());
  bytes_reduced_ += payload_bytes(values_K);
  group_.begin(call_of(CallKind::kAllReduce, values_K, static_cast<int>(op)));
  return std::make_unique<Begun>(*this, std::move(values_K), op);
}

std::unique_ptr<Work> ShmCommunicator::all_reduce(at::Tensor values_K, ReduceOp op) {
  check_values(values_K, device());
  const int64_t num_bytes = payload_bytes(values_K);
  bytes_reduced_ += num_bytes;
  group_.begin(call_of(CallKind::kAllReduce, values_K, static_cast<int>(op)));
  const Items items = items_of(values_K, op);
  // Small tensors: every rank reduces everything, which saves two waits.
  if (is_one_stage(num_bytes)) {
    Chunk whole{bytes_of(values_K), num_bytes};
    begin_whole(whole);
    reduce_whole(whole, items);
  } else {
    reduce_by_shares(bytes_of(values_K), values_K.numel(), items);
  }
  return std::make_unique<DoneWork>();
}

std::unique_ptr<Work> ShmCommunicator::reduce_scatter(at::Tensor out_K, at::Tensor values_NK) {
  check_pieces(out_K, values_NK, world_size(), device());
  bytes_reduced_ += payload_bytes(values_NK);
  group_.begin(call_of(CallKind::kReduceScatter, out_K));
  const Items items = items_of(out_K, ReduceOp::kSum);
  const int64_t b = items.item_bytes, piece_bytes = payload_bytes(out_K);
  const std::byte* values = bytes_of(values_NK);
  exchange(
      // A slot contains a chunk of every rank's piece.
      out_K.numel(), group_.layout().slot_bytes / world_size() / b,
      [&](int64_t begin, int64_t num_items, std::byte* slot) {
        for (int m = 0; m < world_size(); ++m)
          if (m != rank())
            copy_bytes(slot + m * num_items * b, values + m * piece_bytes + begin * b,
                       num_items * b);
      },
      [&](int64_t begin, int64_t num_items, int slot) {
        reduce_slots(slot, rank() * num_items * b, values + rank() * piece_bytes + begin * b,
                     bytes_of(out_K) + begin * b, nullptr, num_items, items);
      });
  return std::make_unique<DoneWork>();
}

std::unique_ptr<Work> ShmCommunicator::all_gather(at::Tensor out_NK, at::Tensor values_K) {
  check_pieces(values_K, out_NK, world_size(), device());
  group_.begin(call_of(CallKind::kAllGather, values_K));
  const int64_t b = static_cast<int64_t>(values_K.itemsize());
  const int64_t piece_bytes = payload_bytes(values_K);
  const std::byte* values = bytes_of(values_K);
  std::byte* out = bytes_of(out_NK);
  exchange(
      values_K.numel(), group_.layout().slot_bytes / b,
      [&](int64_t begin, int64_t num_items, std::byte* slot) {
        copy_bytes(slot, values + begin * b, num_items * b);
      },
      [&](int64_t begin, int64_t num_items, int slot) {
        for (int m = 0; m < world_size(); ++m)
          copy_bytes(out + m * piece_bytes + begin * b,
                     m == rank() ? values + begin * b : group_.slot(m, slot), num_items * b);
      });
  return std::make_unique<DoneWork>();
}

void ShmCommunicator::broadcast(at::Tensor values_K, int root) {
  check_values(values_K, device());
  check(root >= 0 && root < world_size(), "broadcast from a rank that does not exist");
  group_.begin(call_of(CallKind::kBroadcast, values_K, root));
  const int64_t b = static_cast<int64_t>(values_K.itemsize());
  std::byte* values = bytes_of(values_K);
  exchange(
      values_K.numel(), group_.layout().slot_bytes / b,
      [&](int64_t begin, int64_t num_items, std::byte* slot) {
        if (rank() == root) copy_bytes(slot, values + begin * b, num_items * b);
      },
      [&](int64_t begin, int64_t num_items, int slot) {
        if (rank() != root) copy_bytes(values + begin * b, group_.slot(root, slot), num_items * b);
      });
}

// Before the exchanges of a RankGroup too: this names a missing rank, for which MPI would wait
// forever.
void ShmCommunicator::meet(const Call& call) {
  group_.begin(call);
  group_.wait_for_all(group_.advance());
}

SharedMemory ShmCommunicator::share_memory(int64_t num_bytes) {
  meet({.kind = CallKind::kShareMemory, .num_items = num_bytes});
  return map_shared_memory(*ranks_, num_bytes, reserved_bytes_);
}

std::unique_ptr<Communicator> ShmCommunicator::split(int color, int key) {
  check(color >= 0, "split needs a color >= 0");
  meet({.kind = CallKind::kSplit});
  return make_(ranks_->split(color, key));
}

}  // namespace lockstep::dist::cpu
