#pragma once

#include <optional>
#include <vector>

#include "infer/sparse/layer.h"
#include "infer/sparse/onnx_graph.h"

/// Layers of an ONNX graph, with the operators around them fused in.
namespace lockstep::infer {

/// Step of a network: a layer, a rounding to bytes or back, or an operator for run_onnx().
struct Step {
  /// Names of the step's values. Of a layer: inputs, then a residual if any; outputs, then the
  /// rounded ones if any.
  OnnxNode node;
  std::optional<Layer> layer{};
  std::optional<Rounding> rounding{};  ///< of QuantizeLinear or DequantizeLinear
};

struct FusedGraph {
  std::vector<Step> steps;                      ///< in order of computation
  std::map<std::string, at::Tensor> constants;  ///< that steps use
  std::vector<OnnxValue> inputs, outputs;
};

/// Computes what depends on constants only. Makes a layer of each 2-D convolution and each matrix
/// product with constant weights, and fuses what follows it: batch normalisation, scales, biases,
/// residual sums, ReLU, Clip. A layer whose inputs and weights are dequantized int8 has integers,
/// and what rounds its outputs is fused too. Throws Error(kUsage) for an operator that is not
/// supported, by name.
FusedGraph fused(OnnxGraph graph);

}  // namespace lockstep::infer
