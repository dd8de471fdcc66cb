#pragma once

#include "dist/communicator.h"

namespace lockstep::dist {

/// World of one rank: every collective is the identity. Lets code that needs a Communicator run
/// without a launcher or MPI, on the CPU or on one GPU.
class SelfCommunicator final : public Communicator {
 public:
  explicit SelfCommunicator(at::Device device = at::kCPU) : device_(device) {}

  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  at::Device device() const override { return device_; }

  [[nodiscard]] std::unique_ptr<Work> all_reduce(at::Tensor values_K, ReduceOp op) override;
  [[nodiscard]] std::unique_ptr<Work> reduce_scatter(at::Tensor out_K,
                                                     at::Tensor values_NK) override;
  [[nodiscard]] std::unique_ptr<Work> all_gather(at::Tensor out_NK, at::Tensor values_K) override;
  void broadcast(at::Tensor values_K, int root) override;
  void barrier() override {}
  std::unique_ptr<Communicator> split(int color, int key) override;
  int64_t bytes_reduced() const override { return bytes_reduced_; }

 private:
  at::Device device_;
  int64_t bytes_reduced_ = 0;
};

}  // namespace lockstep::dist
