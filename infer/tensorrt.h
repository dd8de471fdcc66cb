#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/yaml/config_reader.h"
#include "infer/saved_model.h"

/// Compilation of a network by Torch-TensorRT: options, library and result.
namespace lockstep::infer {

/// Section `tensorrt_config`: options of compilation for the GPU. Without Torch-TensorRT only
/// `max_batch_size` has an effect.
struct TensorrtConfig {
  bool use_tensorrt = false;
  std::optional<int64_t> max_batch_size;  ///< larger batches are split; absent: no limit
  std::string precision_mode = "FP32";    ///< FP32 | FP16
  int64_t max_workspace_size_bytes = 1 << 30;
  int64_t minimum_segment_size = 3;    ///< smallest number of operators for an engine
  bool is_dynamic_op = false;          ///< one engine for batches of any size
  int64_t maximum_cached_engines = 1;  ///< limit with is_dynamic_op
};

TensorrtConfig read_tensorrt_config(ConfigReader in);

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
