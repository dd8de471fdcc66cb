#pragma once

#include <memory>
#include <string>
#include <utility>

#include "dist/communicator.h"

namespace lockstep::dist {

/// Communicator whose ranks compare each call before they make it (sync.check_collectives; like
/// PyTorch's TORCH_DISTRIBUTED_DEBUG=DETAIL). For a backend that detects no mismatch and names no
/// rank, such as NCCL. A call that differs in kind, operation, root, items or dtype throws
/// Error(kDisagree).everywhere(), with the call of each rank. The communicator that carries the
/// comparison names a rank that hangs or is gone.
///
/// Costs one message of 128 bytes per call, for which the host waits.
class CheckedCommunicator final : public Communicator {
 public:
  /// comparison: a communicator of the same ranks, for this use alone.
  CheckedCommunicator(std::unique_ptr<Communicator> comm, std::unique_ptr<Communicator> comparison);

  int rank() const override { return comm_->rank(); }
  int world_size() const override { return comm_->world_size(); }
  at::Device device() const override { return comm_->device(); }
  bool is_asynchronous() const override { return comm_->is_asynchronous(); }

  std::shared_ptr<StreamMark> mark() override { return comm_->mark(); }
  void begin_behind(std::shared_ptr<StreamMark> mark) override {
    comm_->begin_behind(std::move(mark));
  }
  [[nodiscard]] std::unique_ptr<Work> all_reduce(at::Tensor values_K, ReduceOp op) override;
  [[nodiscard]] std::unique_ptr<Work> reduce_scatter(at::Tensor out_K,
                                                     at::Tensor values_NK) override;
  [[nodiscard]] std::unique_ptr<Work> all_gather(at::Tensor out_NK, at::Tensor values_K) override;
  void broadcast(at::Tensor values_K, int root) override;
  void barrier() override;
  SharedMemory share_memory(int64_t num_bytes) override;
  void settle() override { comm_->settle(); }
  double set_timeout(double timeout_s) override {
    comparison_->set_timeout(timeout_s);
    return comm_->set_timeout(timeout_s);
  }
  std::shared_ptr<DeviceStager> make_stager() override { return comm_->make_stager(); }
  std::shared_ptr<DevicePacking> make_packing() override { return comm_->make_packing(); }
  std::shared_ptr<DeviceGraph> make_graph() override { return comm_->make_graph(); }
  std::unique_ptr<Communicator> split(int color, int key) override;
  int64_t bytes_reduced() const override { return comm_->bytes_reduced(); }

 private:
  void require_equal_calls(const std::string& call);

  const std::unique_ptr<Communicator> comm_, comparison_;
  int64_t num_calls_ = 0;
};

}  // namespace lockstep::dist
