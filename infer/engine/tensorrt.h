#pragma once

#include <memory>
#include <string>

#include "infer/engine/tensorrt_config.h"
#include "infer/network/loaded_network.h"

namespace lockstep::infer {

/// Network compiled by Torch-TensorRT, or the reason why there is none.
struct TensorrtAttempt {
  std::shared_ptr<torch::jit::Module> module;  ///< null: see why_not
  std::string why_not;
};

/// Compiles a network on a GPU with liblockstep_tensorrt.so. That library is built where
/// Torch-TensorRT is installed (docs/inference.md). It is loaded from the path in
/// LOCKSTEP_TENSORRT, else from the program's folder or its lib/lockstep. Else the loader searches
/// for it. It must be of the program's own build. Throws nothing: the caller can continue without
/// it.
TensorrtAttempt try_tensorrt(const torch::jit::Module& module, const IoNodes& nodes,
                             const TensorrtConfig& config, at::Device device);

/// Function `lockstep_tensorrt_compile` of the library. Returns null on failure, the reason in
/// `fault`.
using CompileWithTensorrt = torch::jit::Module* (*)(const torch::jit::Module& module,
                                                    const IoNodes& nodes,
                                                    const TensorrtConfig& config, at::Device device,
                                                    std::string* fault);
/// Function `lockstep_tensorrt_build_id` of the library.
using TensorrtBuildId = const char* (*)();

}  // namespace lockstep::infer
