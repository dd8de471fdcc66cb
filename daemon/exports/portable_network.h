#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "model/model.h"

namespace lockstep::daemon {

/// How a layer's inputs and weights are rounded (docs/quantization.md), as tensors that files hold.
struct QuantizedLayer {
  at::Tensor weight_scale;       ///< float32 [O], or [1]: one for the whole weight
  at::Tensor weight_zero_point;  ///< int8 zeros, as many
  at::Tensor int8_weight;        ///< int8 [O, ...]
  at::Tensor input_scale;        ///< float32 []; undefined: inputs are not rounded
  at::Tensor input_zero_point;   ///< uint8 []

  bool is_per_output() const { return weight_scale.numel() == int8_weight.size(0); }
  bool rounds_inputs() const { return input_scale.defined(); }
};

/// A network with its weights, as other programs can be told of it.
struct PortableNetwork {
  model::Network layers;
  /// Of all layers, by the names of model::tensor_names(); CPU, contiguous.
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, QuantizedLayer> quantized;  ///< linear layers and convolutions, by name
  std::vector<int64_t> input_shape;                 ///< of one sample
  int64_t num_classes = 0;
  std::map<std::string, std::string> facts;  ///< for people and programs: where it comes from
};

/// Throws Error(kUsage) if the model does not describe itself.
PortableNetwork portable(const model::Model& model, const std::vector<int64_t>& input_shape,
                         int64_t num_classes);

/// Refuses a layer that a format cannot express: Error(kUsage) naming format, layer and way out.
[[noreturn]] void refuse_layer(const model::Network& layers, size_t layer, const char* format);

}  // namespace lockstep::daemon
