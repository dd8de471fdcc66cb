#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "infer/sparse/onnx_graph.h"

/// ONNX operators, computed by LibTorch.
namespace lockstep::infer {

/// True if run_onnx() knows the operator.
bool knows_onnx_operator(const std::string& op);

/// Computes a node. `inputs` are in the order of the node's; undefined: not given. Returns its
/// outputs. Throws Error(kBadData), naming the node, if an input is missing or does not fit, or an
/// attribute has a value that is not supported.
std::vector<at::Tensor> run_onnx(const OnnxNode& node, const std::vector<at::Tensor>& inputs);

}  // namespace lockstep::infer
