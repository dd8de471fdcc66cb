#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "dist/communicator.h"
#include "dist/nccl/cuda_handles.h"

namespace lockstep::dist::nccl {

/// NCCL's handle, made so that no call of it blocks, and whether it may still be closed in order.
class OwnedComm {
 public:
  OwnedComm(ncclComm_t comm, double timeout_s) : comm_(comm), timeout_s_(timeout_s) {}
  OwnedComm(OwnedComm&& other) noexcept
      : comm_(std::exchange(other.comm_, nullptr)),
        timeout_s_(other.timeout_s_),
        failed_(other.failed_) {}
  OwnedComm& operator=(OwnedComm&&) = delete;
  /// Destroys it, or aborts it after a fault: then NCCL's kernels may be waiting for a lost peer.
  ~OwnedComm();

  ncclComm_t get() const { return comm_; }
  double timeout_s() const { return timeout_s_; }
  /// Throws Error(kUnavailable) if a peer was lost or a kernel failed since the last call.
  void check_health();
  /// Waits until what the call began is done; throws if it is a fault, and remembers it.
  void require(ncclResult_t result, std::string_view call);
  /// Calls is_done until it says so. Throws as check_health(), and Error(kWatchdog) after
  /// timeout_s.
  void wait_until(const std::function<bool()>& is_done, std::string_view what);

 private:
  ncclResult_t state();

  ncclComm_t comm_;
  double timeout_s_;
  bool failed_ = false;
};

/// Collectives between GPUs, on a stream of its own beside the caller's. A call returns at once;
/// wait() orders the caller's stream behind it, and only barrier() and wait_on_host() make the host
/// wait, no longer than the time limit.
///
/// Sums of floats follow NCCL's order, which is the same on all ranks but depends on N and the
/// algorithm that NCCL picks. 16-bit floats travel as they are: each rank gets all contributions to
/// its piece, adds them in float32, and the rounded pieces are gathered.
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
  /// This rank's piece of the sum of 16-bit floats: values_NK [N * K] -> [K].
  at::Tensor exchange_and_add(const at::Tensor& values_NK);
  void gather_pieces(const at::Tensor& out_NK, const at::Tensor& values_K);

  OwnedComm comm_;
  at::Device device_;
  c10::cuda::CUDAStream stream_;
  at::Tensor barrier_1_;
  int rank_ = 0;
  int num_ranks_ = 1;
  int64_t bytes_reduced_ = 0;
};

}  // namespace lockstep::dist::nccl
