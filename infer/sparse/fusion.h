#pragma once

#include <optional>
#include <vector>

#include "infer/sparse/layer.h"
#include "infer/sparse/onnx_graph.h"

/// Layers of an ONNX graph, with the operators around them fused in.
namespace lockstep::infer {

/// Step of a network: a layer, or an operator for run_onnx().
struct Step {
  OnnxNode node;  ///< its names are the step's values; of a layer: inputs, then a residual if any
  std::optional<Layer> layer;
};

struct FusedGraph {
  std::vector<Step> steps;                      ///< in order of computation
  std::map<std::string, at::Tensor> constants;  ///< that steps use
  std::vector<OnnxValue> inputs, outputs;
};

/// Computes what depends on constants only. Makes a layer of each 2-D convolution and each matrix
/// product with constant weights, and fuses what follows it: batch normalisation, scales, biases,
/// residual sums, ReLU, Clip. Throws Error(kUsage) for an operator that is not supported, by name.
FusedGraph fused(OnnxGraph graph);

}  // namespace lockstep::infer
