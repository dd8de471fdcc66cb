// All collectives begin with notes and end with wait_for_notes(). So a rank with another call is
// named, even if its messages would have matched.
#include "dist/cpu/p2p_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "dist/tensor_math.h"

namespace lockstep::dist::cpu {
namespace {

constexpr int64_t kWholeBytes = 64 << 10;  // total bytes up to which one message per rank beats two
constexpr int64_t kChunkBytes = 8 << 20;   // most bytes of N pieces: bounds the scratch memory
constexpr int kScatterTag = 3, kGatherTag = 4;

/// Returns the size of each of N pieces that travel together; whole items of up to 8 bytes.
int64_t bounded_piece_bytes(int64_t wanted_bytes, int num_ranks) {
  return std::min(wanted_bytes, std::max<int64_t>(kChunkBytes / num_ranks / 8 * 8, 4096));
}

/// Calls start(begin, items, lane) and, one step later, finish(begin, items, lane) for each run of
/// items. So one run travels while the code waits for another. Lanes alternate between 0 and 1.
template <typename Start, typename Finish>
void in_two_lanes(int64_t num_items, int64_t run_items, const Start& start, const Finish& finish) {
  const auto length = [&](int64_t begin) { return std::min(run_items, num_items - begin); };
  for (int64_t begin = 0; begin < num_items + run_items; begin += run_items) {
    const int lane = static_cast<int>(begin / run_items % 2);
    if (begin < num_items) start(begin, length(begin), lane);
    const int64_t previous = begin - run_items;
    if (previous >= 0 && previous < num_items) finish(previous, length(previous), 1 - lane);
  }
}

}  // namespace

P2pCommunicator::P2pCommunicator(std::unique_ptr<Transport> transport,
                                 const CommunicatorOptions& options, Split split)
    : transport_(std::move(transport)),
      channel_(*transport_, options.direct_ranks),
      pieces_(channel_, TreeParts::of_ranks(channel_.num_ranks())),
      tree_(channel_),
      split_(std::move(split)),
      piece_bytes_(bounded_piece_bytes(options.piece_bytes, channel_.num_ranks())),
      runs_N_(channel_.num_ranks()) {
  channel_.set_limits(options.timeout_s, options.slow_after_s);
  channel_.set_find_lost(options.find_lost);
}

void P2pCommunicator::reduce_notes(std::byte* values, int64_t num_items, const Items& items) {
  channel_.wait_for_notes();
  for (int r = 0; r < world_size(); ++r) runs_N_[r] = channel_.note_values(r);
  reduce_in_rank_order(runs_N_, values, num_items, items.dtype, items.op);
}

void P2pCommunicator::reduce_by_pieces(std::byte* values, int64_t num_items, const Items& items) {
  const int64_t b = items.item_bytes;
  const int64_t chunk_items = piece_bytes_ * world_size() / b;
  const int64_t num_chunks = (num_items + chunk_items - 1) / chunk_items;
  const ChunkedAllReduce::Format format{items.dtype, items.dtype, b, b, items.op};
  const auto lane = [](int64_t i) { return static_cast<int>(i % ChunkedAllReduce::kLanes); };
  // Three chunks overlap, one in each stage; ChunkedAllReduce has a lane for each.
  for (int64_t i = 0; i < num_chunks + 2; ++i) {
    if (i < num_chunks) {
      const std::byte* source = values + i * chunk_items * b;
      pieces_.start_scatter(lane(i), {&source, 1},
                            std::min(chunk_items, num_items - i * chunk_items), format);
    }
    if (i >= 1 && i <= num_chunks) {
      pieces_.finish_scatter(lane(i - 1), values + (i - 1) * chunk_items * b);
      pieces_.start_gather(lane(i - 1));
    }
    if (i >= 2) pieces_.finish_gather(lane(i - 2));
  }
}

std::unique_ptr<Work> P2pCommunicator::all_reduce(at::Tensor values_K, ReduceOp op) {
  check_values(values_K, device());
  const int64_t num_bytes = payload_bytes(values_K);
  bytes_reduced_ += num_bytes;
  const Call call = call_of(CallKind::kAllReduce, values_K, static_cast<int>(op));
  std::byte* values = bytes_of(values_K);
  if (!channel_.is_direct()) {
    channel_.begin(call);
    tree_.all_reduce_narrow(values, values_K.numel(), SumFormat::of(items_of(values_K, op)));
    channel_.wait_for_notes();
    // The note itself carries the values: one message per rank, and every rank adds all of them.
  } else if (num_bytes <= std::min(P2pChannel::kNoteBytes, kWholeBytes / world_size())) {
    channel_.begin(call, values, num_bytes);
    reduce_notes(values, values_K.numel(), items_of(values_K, op));
  } else {
    channel_.begin(call);
    reduce_by_pieces(values, values_K.numel(), items_of(values_K, op));
  }
  return std::make_unique<DoneWork>();
}

std::unique_ptr<Work> P2pCommunicator::reduce_scatter(at::Tensor out_K, at::Tensor values_NK) {
  check_pieces(out_K, values_NK, world_size(), device());
  bytes_reduced_ += payload_bytes(values_NK);
  channel_.begin(call_of(CallKind::kReduceScatter, out_K));
  const Items items = items_of(out_K, ReduceOp::kSum);
  if (!channel_.is_direct()) {
    tree_.reduce_scatter(bytes_of(values_NK), bytes_of(out_K), out_K.numel(), SumFormat::of(items));
    channel_.wait_for_notes();
    return std::make_unique<DoneWork>();
  }
  const int64_t b = items.item_bytes, whole_bytes = payload_bytes(out_K);
  const int64_t run_items = piece_bytes_ / b;
  const std::byte* values = bytes_of(values_NK);
  // Two lanes: one run is received while the other is added.
  for (auto& scratch : scratch_) scratch.resize(run_items * b * world_size());
  const auto start = [&](int64_t begin, int64_t num_items, int lane) {
    for (int r = 0; r < world_size(); ++r) {
      if (r == rank()) continue;
      channel_.receive(scratch_[lane].data() + r * num_items * b, num_items * b, r, kScatterTag,
                       &batches_[lane]);
      channel_.send(values + r * whole_bytes + begin * b, num_items * b, r, kScatterTag,
                    &batches_[lane]);
    }
  };
  const auto finish = [&](int64_t begin, int64_t num_items, int lane) {
    channel_.wait(&batches_[lane]);
    for (int r = 0; r < world_size(); ++r)
      runs_N_[r] = r == rank() ? values + r * whole_bytes + begin * b
                               : scratch_[lane].data() + r * num_items * b;
    reduce_in_rank_order(runs_N_, bytes_of(out_K) + begin * b, num_items, items.dtype, items.op);
  };
  in_two_lanes(out_K.numel(), run_items, start, finish);
  channel_.wait_for_notes();
  return std::make_unique<DoneWork>();
}

std::unique_ptr<Work> P2pCommunicator::all_gather(at::Tensor out_NK, at::Tensor values_K) {
  check_pieces(values_K, out_NK, world_size(), device());
  channel_.begin(call_of(CallKind::kAllGather, values_K));
  const int64_t b = static_cast<int64_t>(values_K.itemsize()),
                whole_bytes = payload_bytes(values_K);
  const std::byte* values = bytes_of(values_K);
  if (!channel_.is_direct()) {
    tree_.all_gather(bytes_of(out_NK), values, values_K.numel(), b);
    channel_.wait_for_notes();
    return std::make_unique<DoneWork>();
  }
  const auto start = [&](int64_t begin, int64_t num_items, int lane) {
    for (int r = 0; r < world_size(); ++r) {
      if (r == rank()) continue;
      channel_.receive(bytes_of(out_NK) + r * whole_bytes + begin * b, num_items * b, r, kGatherTag,
                       &batches_[lane]);
      channel_.send(values + begin * b, num_items * b, r, kGatherTag, &batches_[lane]);
    }
  };
  const auto finish = [&](int64_t, int64_t, int lane) { channel_.wait(&batches_[lane]); };
  std::byte* own = bytes_of(out_NK) + rank() * whole_bytes;
  if (whole_bytes > 0 && own != values) std::memcpy(own, values, static_cast<size_t>(whole_bytes));
  in_two_lanes(values_K.numel(), piece_bytes_ / b, start, finish);
  channel_.wait_for_notes();
  return std::make_unique<DoneWork>();
}

/// Sends piece r from the root to rank r, and from there to all ranks, so that no rank sends more
/// than twice the tensor.
void P2pCommunicator::broadcast(at::Tensor values_K, int root) {
  check_values(values_K, device());
  check(root >= 0 && root < world_size(), "broadcast from a rank that does not exist");
  channel_.begin(call_of(CallKind::kBroadcast, values_K, root));
  const int64_t b = static_cast<int64_t>(values_K.itemsize());
  std::byte* values = bytes_of(values_K);
  if (!channel_.is_direct()) {
    tree_.broadcast(values, payload_bytes(values_K), root);
    return channel_.wait_for_notes();
  }
  const auto start = [&](int64_t begin, int64_t num_items, int lane) {
    const auto piece_begin = [&](int r) { return (begin + num_items * r / world_size()) * b; };
    const auto piece_size = [&](int r) { return piece_begin(r + 1) - piece_begin(r); };
    if (rank() != root)
      channel_.receive(values + piece_begin(rank()), piece_size(rank()), root, kScatterTag,
                       &batches_[lane]);
    for (int r = 0; rank() == root && r < world_size(); ++r)
      if (r != root)
        channel_.send(values + piece_begin(r), piece_size(r), r, kScatterTag, &batches_[lane]);
  };
  const auto finish = [&](int64_t begin, int64_t num_items, int lane) {
    const auto piece_begin = [&](int r) { return (begin + num_items * r / world_size()) * b; };
    const auto piece_size = [&](int r) { return piece_begin(r + 1) - piece_begin(r); };
    channel_.wait(&batches_[lane]);
    for (int r = 0; r < world_size(); ++r) {
      if (r == rank()) continue;
      if (rank() != root)
        channel_.receive(values + piece_begin(r), piece_size(r), r, kGatherTag, &batches_[lane]);
      if (r != root)
        channel_.send(values + piece_begin(rank()), piece_size(rank()), r, kGatherTag,
                      &batches_[lane]);
    }
    channel_.wait(&batches_[lane]);
  };
  in_two_lanes(values_K.numel(), piece_bytes_ * world_size() / b, start, finish);
  channel_.wait_for_notes();
}

void P2pCommunicator::barrier() { channel_.meet({.kind = CallKind::kBarrier}); }

std::unique_ptr<Communicator> P2pCommunicator::split(int color, int key) {
  check(color >= 0, "split needs a color >= 0");
  channel_.meet({.kind = CallKind::kSplit});  // names a missing rank; MPI would wait forever
  return split_(color, key);
}

}  // namespace lockstep::dist::cpu
