#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>

#include "dist/communicator.h"
#include "dist/nccl/gpu_calls.h"
#include "dist/nccl/watched_comm.h"

namespace lockstep::dist::nccl {

/// Collectives between GPUs, on a separate stream. A call returns at once, and wait() orders the
/// caller's stream after it. Only barrier(), settle() and wait_on_host() make the host wait, at
/// most for the time limit. The watchdog (watched_comm.h) bounds all other waits for a stream,
/// inside CUDA.
///
/// Sums of floats follow NCCL's order. It is the same on all ranks, but depends on N and on the
/// algorithm that NCCL chooses. 16-bit floats are sent unchanged: each rank receives all
/// contributions to its piece, adds them in float32, and the rounded pieces are gathered.
class NcclCommunicator final : public Communicator {
 public:
  /// `comm` must be started.
  NcclCommunicator(std::shared_ptr<GpuCalls> gpu, std::shared_ptr<WatchedComm> comm);

  int rank() const override { return rank_; }
  int world_size() const override { return num_ranks_; }
  at::Device device() const override { return device_; }
  bool is_asynchronous() const override { return true; }

  std::shared_ptr<StreamMark> mark() override;
  void start_after(std::shared_ptr<StreamMark> mark) override { behind_ = std::move(mark); }
  [[nodiscard]] std::unique_ptr<Work> all_reduce(at::Tensor values_K, ReduceOp op) override;
  [[nodiscard]] std::unique_ptr<Work> reduce_scatter(at::Tensor out_K,
                                                     at::Tensor values_NK) override;
  [[nodiscard]] std::unique_ptr<Work> all_gather(at::Tensor out_NK, at::Tensor values_K) override;
  void broadcast(at::Tensor values_K, int root) override;
  void barrier() override;
  void settle() override;
  std::shared_ptr<DeviceStager> make_stager() override;
  std::shared_ptr<DevicePacking> make_packing() override;
  std::shared_ptr<DeviceGraph> make_graph() override { return gpu_->make_graph(); }
  std::unique_ptr<Communicator> split(int color, int key) override;
  int64_t bytes_reduced() const override { return bytes_reduced_; }

 private:
  /// Runs `enqueue`, whose calls go to the communicator's stream, after the work of the caller's
  /// stream, or after the mark of start_after(). `touched` tensors stay allocated until the
  /// collective is done.
  std::unique_ptr<Work> enqueue_after_caller(std::string what,
                                             std::initializer_list<at::Tensor> touched,
                                             const std::function<void()>& enqueue);
  void sum_16_bit(const at::Tensor& values_K);
  /// Computes this rank's piece of the sum of 16-bit floats: values_NK [N * K] -> out_K [K].
  /// from_ranks_NK: scratch memory.
  void exchange_and_add(const at::Tensor& out_K, const at::Tensor& values_NK,
                        const at::Tensor& from_ranks_NK);

  const std::shared_ptr<GpuCalls> gpu_;
  const std::shared_ptr<WatchedComm> comm_;
  const at::Device device_;
  at::Tensor barrier_1_;
  std::shared_ptr<StreamMark> behind_;  ///< for the next collective
  std::shared_ptr<Event> last_;         ///< end of the collective enqueued last
  int rank_ = 0;
  int num_ranks_ = 1;
  int64_t bytes_reduced_ = 0;
};

/// Creates a communicator over the devices of the ranks of `control`; `gpu` is that of this rank.
/// Collective over `control`, which is not kept. If a rank cannot take part or is late, every rank
/// throws the error of the lowest such rank.
std::unique_ptr<Communicator> start_communicator(Communicator& control,
                                                 std::shared_ptr<GpuCalls> gpu,
                                                 const WatchLimits& limits);

}  // namespace lockstep::dist::nccl
