#pragma once

#include <functional>
#include <memory>
#include <string>

#include <torch/optim/optimizer.h>

#include "base/tensors/state_list.h"

namespace lockstep::checkpoint {

/// State that one kind of LibTorch's optimizers keeps for a parameter.
class TorchSlots {
 public:
  virtual ~TorchSlots() = default;
  /// Returns the existing slots by name; the tensors are live memory of `state`.
  virtual StateList list(torch::optim::OptimizerParamState& state) const = 0;
  /// Returns the state that the first step would start with, all slots 0; null if these options
  /// need none. `is_saved` answers for a slot by name, for slots whose number grows with the steps.
  virtual std::unique_ptr<torch::optim::OptimizerParamState> fresh(
      const at::Tensor& param, const torch::optim::OptimizerOptions& options,
      const std::function<bool(const std::string&)>& is_saved) const = 0;
};

/// Returns the slots of an optimizer, which must outlive the result. Throws Error(kConfig) for an
/// unknown kind.
std::unique_ptr<TorchSlots> slots_of(const torch::optim::Optimizer& optimizer);

}  // namespace lockstep::checkpoint
