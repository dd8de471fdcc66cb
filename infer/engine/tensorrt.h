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
/// Torch-TensorRT is installed (docs/inference.md) and opened here: where the environment's
/// LOCKSTEP_TENSORRT says, else beside the program or in its lib/lockstep, else wherever the loader
/// finds it. It must be of the program's own build. Throws nothing: whoever asked can go on without
/// it.
TensorrtAttempt try_tensorrt(const torch::jit::Module& module, const IoNodes& nodes,
                             const TensorrtConfig& config, at::Device device);

/// A function of that module, `lockstep_tensorrt_compile`. Returns null and why in `fault`.
using CompileWithTensorrt = torch::jit::Module* (*)(const torch::jit::Module& module,
                                                    const IoNodes& nodes,
                                                    const TensorrtConfig& config, at::Device device,
                                                    std::string* fault);
/// The other one, `lockstep_tensorrt_build_id`.
using TensorrtBuildId = const char* (*)();

}  // namespace lockstep::infer
