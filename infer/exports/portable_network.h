#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "infer/exports/checkpoint_model.h"
#include "model/model.h"

/// Network in a form that files of other programs can contain, with its quantization.
namespace lockstep::exports {

/// Rounding of a layer's inputs and weights (docs/quantization.md), as tensors that files contain.
struct QuantizedLayer {
  at::Tensor weight_scale;       ///< float32 [O], or [1]: one for the whole weight
  at::Tensor weight_zero_point;  ///< int8 zeros, same shape as weight_scale
  at::Tensor int8_weight;        ///< int8 [O, ...]
  at::Tensor input_scale;        ///< float32 []; undefined if inputs are not rounded
  at::Tensor input_zero_point;   ///< uint8 []

  bool is_per_output() const { return weight_scale.numel() == int8_weight.size(0); }
  bool rounds_inputs() const { return input_scale.defined(); }
};

/// Network with its weights in a form that can be exported to other programs.
struct PortableNetwork {
  model::Network layers;
  /// Tensors of all layers, by the names of model::tensor_names(). On the CPU, contiguous.
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, QuantizedLayer> quantized;  ///< linear layers and convolutions, by name
  std::vector<int64_t> input_shape;                 ///< of one sample
  int64_t num_classes = 0;
  std::map<std::string, std::string> facts;  ///< for people and programs: its origin
};

/// Converts a model. Throws Error(kUsage) if the model does not describe its layers. Networks in
/// Python are traced, but only with `traces`.
PortableNetwork portable(const model::Model& model, const std::vector<int64_t>& input_shape,
                         int64_t num_classes, bool traces = false);

/// Throws Error(kUsage) for a layer that a format cannot express. The message names format, layer
/// and way out.
[[noreturn]] void refuse_layer(const model::Network& layers, size_t layer, const char* format);

/// Returns the fake quantization of the checkpoint's run, by layer. These are scales and zero
/// points (recal/quantization/int8_rounding.h), and the weights as int8.
std::map<std::string, QuantizedLayer> quantized_layers(const CheckpointModel& saved);

/// Throws Error(kUsage) unless some layer of the checkpoint is quantized and the inputs of all
/// quantized layers were observed. Without observed inputs there is no scale for int8 export.
void require_quantized(const CheckpointModel& saved);

}  // namespace lockstep::exports
