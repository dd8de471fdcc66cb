// The library liblockstep_tensorrt.so, which compiles a network with Torch-TensorRT.
// infer/tensorrt.cpp loads it and calls its two functions.

#include <exception>
#include <vector>

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/passes/freeze_module.h>
#include <torch_tensorrt/torch_tensorrt.h>

#include "infer/tensorrt.h"

namespace lockstep::infer {
namespace {

/// Shape of a node with this number of samples. Other dimensions of any extent are not supported.
std::vector<int64_t> shape_of(const IoNode& node, int64_t num_samples) {
  std::vector<int64_t> shape = node.shape;
  if (!shape.empty() && shape.front() == IoNode::kAny) shape.front() = num_samples;
  return shape;
}

/// Input for one engine that takes batches from 1 to the largest, for which it is tuned. A feed's
/// last batch may be smaller.
torch_tensorrt::Input input_of(const IoNode& node, int64_t largest) {
  const torch_tensorrt::DataType dtype(node.dtype);
  return {shape_of(node, 1), shape_of(node, largest), shape_of(node, largest), dtype};
}

torch_tensorrt::torchscript::CompileSpec spec_of(const IoNodes& nodes, const TensorrtConfig& config,
                                                 at::Device device) {
  std::vector<torch_tensorrt::Input> inputs;
  for (const IoNode& node : nodes.inputs) inputs.push_back(input_of(node, *config.max_batch_size));
  torch_tensorrt::torchscript::CompileSpec spec(std::move(inputs));
  if (config.precision_mode == "FP16")
    spec.enabled_precisions.insert(torch_tensorrt::DataType::kHalf);
  spec.truncate_long_and_double = true;  // TensorRT supports neither
  spec.workspace_size = static_cast<uint64_t>(config.max_workspace_size_bytes);
  spec.min_block_size = static_cast<uint64_t>(config.minimum_segment_size);
  spec.device.gpu_id = device.has_index() ? device.index() : 0;
  return spec;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const char* lockstep_tensorrt_build_id() {
  return LOCKSTEP_BUILD_ID;
}

extern "C" __attribute__((visibility("default"))) torch::jit::Module* lockstep_tensorrt_compile(
    const torch::jit::Module& module, const IoNodes& nodes, const TensorrtConfig& config,
    at::Device device, std::string* fault) {
  if (!config.max_batch_size) {
    *fault = "tensorrt_config.max_batch_size is not given, the largest batch of its engine";
    return nullptr;
  }
  try {
    torch::jit::Module evaluated = module.clone();
    evaluated.eval();
    return new torch::jit::Module(torch_tensorrt::torchscript::compile(
        torch::jit::freeze_module(evaluated), spec_of(nodes, config, device)));
  } catch (const std::exception& error) {
    *fault = error.what();
    return nullptr;
  }
}

}  // namespace lockstep::infer
