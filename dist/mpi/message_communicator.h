#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "dist/communicator.h"
#include "dist/mpi/mail.h"
#include "dist/mpi/make_communicator.h"
#include "dist/mpi/mpi_handles.h"
#include "dist/mpi/piece_exchange.h"

namespace lockstep::dist::mpi {

/// Collectives over messages between CPUs. Every call is done when it returns.
///
/// Cost of all_reduce of S bytes, sent by each rank: small tensors (S <= 4 KiB, N * S <= 64 KiB) go
/// whole to every rank with its note, S * (N - 1); larger ones 2 * S * (N - 1) / N: piece r goes to
/// rank r, which adds the N pieces, and back to all. MPI's own reductions choose their order by
/// size and rank count, so their bits would depend on both. Tensors travel in chunks, several at a
/// time, which bounds the scratch memory and keeps both directions of a link busy.
class MessageCommunicator final : public Communicator {
 public:
  MessageCommunicator(OwnedComm comm, double timeout_s, MakeCommunicator make);

  int rank() const override { return mail_.rank(); }
  int world_size() const override { return mail_.num_ranks(); }
  at::Device device() const override { return at::kCPU; }

  [[nodiscard]] std::unique_ptr<Work> all_reduce(at::Tensor values_K, ReduceOp op) override;
  [[nodiscard]] std::unique_ptr<Work> reduce_scatter(at::Tensor out_K,
                                                     at::Tensor values_NK) override;
  [[nodiscard]] std::unique_ptr<Work> all_gather(at::Tensor out_NK, at::Tensor values_K) override;
  void broadcast(at::Tensor values_K, int root) override;
  void barrier() override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  int64_t bytes_reduced() const override { return bytes_reduced_; }

  /// For a communicator that has other ways too, so that every call begins with notes to all ranks.
  Mail& mail() { return mail_; }

 private:
  void reduce_notes(std::byte* values, int64_t num_items, const Items& items);
  void reduce_by_pieces(std::byte* values, int64_t num_items, const Items& items);

  OwnedComm comm_;
  Mail mail_;
  PieceExchange pieces_;
  MakeCommunicator make_;
  int64_t bytes_reduced_ = 0;
  // Kept so that a steady step allocates nothing.
  std::vector<const std::byte*> runs_N_;
  std::array<std::vector<std::byte>, 2> scratch_;
  std::array<Mail::Batch, 2> batches_;
};

}  // namespace lockstep::dist::mpi
