#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "model/model.h"

namespace lockstep::daemon {

/// A network with its weights, as other programs can be told of it.
struct PortableNetwork {
  model::Network layers;
  /// Of all layers, by the names of model::tensor_names(); CPU, contiguous.
  std::map<std::string, at::Tensor> tensors;
  std::vector<int64_t> input_shape;  ///< of one sample
  int64_t num_classes = 0;
  std::map<std::string, std::string> facts;  ///< for people and programs: where it comes from
};

/// Throws Error(kUsage) if the model does not describe itself.
PortableNetwork portable(const model::Model& model, const std::vector<int64_t>& input_shape,
                         int64_t num_classes);

/// Refuses a layer that a format cannot express: Error(kUsage) naming format, layer and way out.
[[noreturn]] void refuse_layer(const model::Network& layers, size_t layer, const char* format);

}  // namespace lockstep::daemon
