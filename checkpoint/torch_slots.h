#pragma once

#include <memory>

#include <torch/optim/optimizer.h>

#include "base/state_list.h"

namespace lockstep::checkpoint {

/// What one kind of LibTorch's optimizers keeps for a parameter.
class TorchSlots {
 public:
  virtual ~TorchSlots() = default;
  /// Slots that exist, by name; live memory of `state`.
  virtual StateList list(torch::optim::OptimizerParamState& state) const = 0;
  /// The state that the first step would begin with, all slots 0; null: these options need none.
  virtual std::unique_ptr<torch::optim::OptimizerParamState> fresh(
      const at::Tensor& param, const torch::optim::OptimizerOptions& options) const = 0;
};

/// Throws Error(kConfig) for an optimizer that is not known.
std::unique_ptr<TorchSlots> slots_of(const torch::optim::Optimizer& optimizer);

}  // namespace lockstep::checkpoint
