#pragma once

#include <vector>

#include "dist/communicator.h"
#include "dist/mpi/mpi_handles.h"

namespace lockstep::dist::mpi {

/// Collectives over messages between CPUs. Every call is done when it returns.
///
/// Cost of all_reduce of S bytes, sent by each rank: small tensors (N * S <= 16 KiB) go whole to
/// every rank, S * (N - 1); larger ones 2 * S * (N - 1) / N: piece r goes to rank r, which adds the
/// N pieces in rank order, and back to all. MPI's own reductions choose their order by size and
/// rank count, so their bits would depend on both. Tensors travel in chunks, which bounds the
/// scratch memory (one chunk) and keeps MPI's int counts far from their end.
class MpiCommunicator final : public Communicator {
 public:
  explicit MpiCommunicator(OwnedComm comm);

  int rank() const override { return rank_; }
  int world_size() const override { return num_ranks_; }
  at::Device device() const override { return at::kCPU; }

  [[nodiscard]] std::unique_ptr<Work> all_reduce(at::Tensor values_K, ReduceOp op) override;
  [[nodiscard]] std::unique_ptr<Work> reduce_scatter(at::Tensor out_K,
                                                     at::Tensor values_NK) override;
  [[nodiscard]] std::unique_ptr<Work> all_gather(at::Tensor out_NK, at::Tensor values_K) override;
  void broadcast(at::Tensor values_K, int root) override;
  void barrier() override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  int64_t bytes_reduced() const override { return bytes_reduced_; }

 private:
  struct Items {  ///< what the local sum must know
    at::ScalarType dtype;
    int64_t item_bytes;
    ReduceOp op;
  };

  void reduce_whole(std::byte* values, int64_t num_items, const Items& items);
  void reduce_by_pieces(std::byte* values, int64_t num_items, const Items& items);
  /// Reduces the N runs of `run_bytes` that scratch_ holds.
  void reduce_scratch(std::byte* out, int64_t run_bytes, const Items& items);
  std::byte* scratch(int64_t num_bytes);

  OwnedComm comm_;
  int rank_;
  int num_ranks_;
  int64_t bytes_reduced_ = 0;
  std::vector<std::byte> scratch_;
  // Kept so that a steady step allocates nothing; [N] each.
  std::vector<const std::byte*> runs_N_;
  std::vector<int> send_bytes_N_, send_begin_N_, receive_bytes_N_, receive_begin_N_;
};

}  // namespace lockstep::dist::mpi
