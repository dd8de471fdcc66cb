#pragma once

#include <functional>
#include <memory>
#include <string>

#include <torch/optim/optimizer.h>

#include "base/tensors/state_list.h"

namespace lockstep::checkpoint {

/// What one kind of LibTorch's optimizers keeps for a parameter.
class TorchSlots {
 public:
  virtual ~TorchSlots() = default;
  /// Slots that exist, by name; live memory of `state`.
  virtual StateList list(torch::optim::OptimizerParamState& state) const = 0;
  /// The state that the first step would begin with, all slots 0; null: these options need none.
  /// `is_saved` tells of a slot by name, for those whose number grows with the steps.
  virtual std::unique_ptr<torch::optim::OptimizerParamState> fresh(
      const at::Tensor& param, const torch::optim::OptimizerOptions& options,
      const std::function<bool(const std::string&)>& is_saved) const = 0;
};

/// Throws Error(kConfig) for an optimizer that is not known. The optimizer must outlive it.
std::unique_ptr<TorchSlots> slots_of(const torch::optim::Optimizer& optimizer);

}  // namespace lockstep::checkpoint
