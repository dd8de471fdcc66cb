#pragma once

#include <memory>

#include "dist/communicator.h"
#include "dist/nccl/cuda_handles.h"

namespace lockstep::dist::nccl {

/// NCCL's handle, and whether it may still be closed in order.
class OwnedComm {
 public:
  explicit OwnedComm(ncclComm_t comm) : comm_(comm) {}
  OwnedComm(OwnedComm&& other) noexcept : comm_(other.comm_), failed_(other.failed_) {
    other.comm_ = nullptr;
  }
  OwnedComm& operator=(OwnedComm&&) = delete;
  /// Destroys it, or aborts it after a fault: then NCCL's kernels may be waiting for a lost peer.
  ~OwnedComm();

  ncclComm_t get() const { return comm_; }
  /// Throws Error(kUnavailable) if a peer was lost or a kernel failed since the last call.
  void check_health();
  /// Throws if `result` is a fault, and remembers it.
  void require(ncclResult_t result, std::string_view call);

 private:
  ncclComm_t comm_;
  bool failed_ = false;
};

/// Collectives between GPUs, on a stream of its own beside the caller's. A call returns at once;
/// wait() orders the caller's stream behind it, and only barrier() makes the host wait.
///
/// Sums of floats follow NCCL's order, which is the same on all ranks but depends on N and the
/// algorithm that NCCL picks. Sums of 16-bit floats travel as float32.
class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(OwnedComm comm, int device_index);

  int rank() const override { return rank_; }
  int world_size() const override { return num_ranks_; }
  at::Device device() const override { return device_; }

  [[nodiscard]] std::unique_ptr<Work> all_reduce(at::Tensor values_K, ReduceOp op) override;
  [[nodiscard]] std::unique_ptr<Work> reduce_scatter(at::Tensor out_K,
                                                     at::Tensor values_NK) override;
  [[nodiscard]] std::unique_ptr<Work> all_gather(at::Tensor out_NK, at::Tensor values_K) override;
  void broadcast(at::Tensor values_K, int root) override;
  void barrier() override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  int64_t bytes_reduced() const override { return bytes_reduced_; }

 private:
  /// Runs `enqueue` with this communicator's stream as the current one, behind the caller's stream;
  /// `touched` tensors stay allocated until it is done.
  template <typename Enqueue>
  std::unique_ptr<Work> enqueue_after_caller(std::initializer_list<at::Tensor> touched,
                                             const Enqueue& enqueue);

  void sum_or_extreme(const at::Tensor& values_K, ReduceOp op);

  OwnedComm comm_;
  at::Device device_;
  c10::cuda::CUDAStream stream_;
  at::Tensor barrier_1_;
  int rank_ = 0;
  int num_ranks_ = 1;
  int64_t bytes_reduced_ = 0;
};

}  // namespace lockstep::dist::nccl
