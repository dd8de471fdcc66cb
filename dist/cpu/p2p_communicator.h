#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "dist/communicator.h"
#include "dist/cpu/chunked_all_reduce.h"
#include "dist/cpu/make_communicator.h"
#include "dist/cpu/p2p_channel.h"
#include "dist/cpu/tree_exchange.h"

namespace lockstep::dist::cpu {

/// Collectives over messages between CPUs. Every call is done when it returns.
///
/// With more than `direct_ranks` ranks: dist/cpu/tree_exchange.h. A rank sends about 2 log2 N
/// messages for each collective, and log2 N notes (dist/cpu/p2p_channel.h).
///
/// With fewer ranks each rank sends to each other: N squared messages, but one or two stages. Small
/// tensors (S <= 4 KiB, N * S <= 64 KiB) go whole to every rank with its note: S * (N - 1) bytes by
/// each rank. Of larger ones piece r goes to rank r, which adds the N pieces, and back to all:
/// 2 * S * (N - 1) / N. They travel in chunks, several at a time, which bounds the scratch memory
/// and keeps both directions of a link busy. (The order of MPI's own reductions depends on sizes.)
class P2pCommunicator : public Communicator {
 public:
  /// Function that creates the children, after all ranks have called; collective over the
  /// transport's ranks.
  using Split = std::function<std::unique_ptr<Communicator>(int color, int key)>;

  /// Takes over the transport. Collective.
  P2pCommunicator(std::unique_ptr<Transport> transport, const CommunicatorOptions& options,
                  Split split);

  int rank() const override { return channel_.rank(); }
  int world_size() const override { return channel_.num_ranks(); }
  at::Device device() const override { return at::kCPU; }

  [[nodiscard]] std::unique_ptr<Work> all_reduce(at::Tensor values_K, ReduceOp op) override;
  [[nodiscard]] std::unique_ptr<Work> reduce_scatter(at::Tensor out_K,
                                                     at::Tensor values_NK) override;
  [[nodiscard]] std::unique_ptr<Work> all_gather(at::Tensor out_NK, at::Tensor values_K) override;
  void broadcast(at::Tensor values_K, int root) override;
  void barrier() override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  int64_t bytes_reduced() const override { return bytes_reduced_; }
  double set_timeout(double timeout_s) override { return channel_.set_timeout(timeout_s); }

 private:
  std::unique_ptr<Transport> transport_;

 protected:
  P2pChannel channel_;  ///< on which every call begins with notes, whatever path it takes
  int64_t bytes_reduced_ = 0;

 private:
  void reduce_notes(std::byte* values, int64_t num_items, const Items& items);
  void reduce_by_pieces(std::byte* values, int64_t num_items, const Items& items);

  ChunkedAllReduce pieces_;
  TreeExchange tree_;
  Split split_;
  const int64_t piece_bytes_;
  // Members, so that a steady step allocates nothing.
  std::vector<const std::byte*> runs_N_;
  std::array<std::vector<std::byte>, 2> scratch_;
  std::array<P2pChannel::Batch, 2> batches_;
};

}  // namespace lockstep::dist::cpu
