#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>

#include "dist/communicator.h"

namespace lockstep::tests {

/// Passes all calls on; counts the reductions that are done and lets a test break one.
class SpyCommunicator final : public dist::Communicator {
 public:
  explicit SpyCommunicator(dist::Communicator& comm) : comm_(comm) {}

  int rank() const override { return comm_.rank(); }
  int world_size() const override { return comm_.world_size(); }
  at::Device device() const override { return pretended_device.value_or(comm_.device()); }
  std::unique_ptr<dist::Work> all_reduce(at::Tensor values_K, dist::ReduceOp op) override {
    if (before_reduction) before_reduction(num_reductions.load());
    auto work = comm_.all_reduce(values_K, op);
    ++num_reductions;
    return work;
  }
  std::unique_ptr<dist::Work> reduce_scatter(at::Tensor out_K, at::Tensor values_NK) override {
    if (before_reduction) before_reduction(num_reductions.load());
    auto work = comm_.reduce_scatter(out_K, values_NK);
    ++num_reductions;
    return work;
  }
  std::unique_ptr<dist::Work> all_gather(at::Tensor out_NK, at::Tensor values_K) override {
    if (before_gather) before_gather();
    return comm_.all_gather(out_NK, values_K);
  }
  void broadcast(at::Tensor values_K, int root) override { comm_.broadcast(values_K, root); }
  void barrier() override { comm_.barrier(); }
  std::unique_ptr<dist::Communicator> split(int color, int key) override {
    return comm_.split(color, key);
  }
  std::shared_ptr<DevicePacking> make_packing() override { return packing; }
  int64_t bytes_reduced() const override { return comm_.bytes_reduced(); }
  double set_timeout(double timeout_s) override { return comm_.set_timeout(timeout_s); }

  std::optional<at::Device> pretended_device;  ///< for what only asks where tensors are to live
  std::shared_ptr<DevicePacking> packing;      ///< of that device
  std::atomic<int> num_reductions = 0;
  std::function<void(int number)> before_reduction;
  std::function<void()> before_gather;

 private:
  dist::Communicator& comm_;
};

}  // namespace lockstep::tests
