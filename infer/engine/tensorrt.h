#pragma once

#include <memory>
#include <string>

#include "infer/engine/tensorrt_config.h"
#include "infer/network/loaded_network.h"

namespace lockstep::infer {

/// What Torch-TensorRT made of a network, or why it did not.
struct TensorrtAttempt {
  std::shared_ptr<torch::jit::Module> module;  ///< null: see why_not
  std::string why_not;
};

/// Compiles a network on a GPU with the module liblockstep_tensorrt.so, which is built where
/// Torch-TensorRT is installed (docs/inference.md) and opened here: first where the environment's
/// LOCKSTEP_TENSORRT says, else wherever the loader finds it. Throws nothing: whoever asked can go
/// on without it.
TensorrtAttempt try_tensorrt(const torch::jit::Module& module, const IoNodes& nodes,
                             const TensorrtConfig& config, at::Device device);

/// The one function of that module, `lockstep_tensorrt_compile`. Returns null and why in `fault`.
using CompileWithTensorrt = torch::jit::Module* (*)(const torch::jit::Module& module,
                                                    const IoNodes& nodes,
                                                    const TensorrtConfig& config, at::Device device,
                                                    std::string* fault);

}  // namespace lockstep::infer
