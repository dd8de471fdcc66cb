#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "base/tensors/layer_info.h"

namespace lockstep {

/// Hook by which another module changes the tensors that a layer computes with, such as fake
/// quantization. It is called in each forward pass, input before weight, layers in the order of the
/// model. `layer` is an index in the model's list of LayerInfo. The result takes part in the
/// gradient.
class LayerHook {
 public:
  virtual ~LayerHook() = default;
  virtual at::Tensor input(int64_t layer, const at::Tensor& input) = 0;
  virtual at::Tensor weight(int64_t layer, const at::Tensor& weight) = 0;
};

}  // namespace lockstep
