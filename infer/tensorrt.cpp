#include "infer/tensorrt.h"

#include <cstdlib>
#include <filesystem>

#include <dlfcn.h>
#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>

#include "base/files/files.h"
#include "base/process.h"

namespace lockstep::infer {

TensorrtConfig read_tensorrt_config(ConfigReader in) {
  TensorrtConfig config;
  in.read("use_tensorrt", &config.use_tensorrt,
          "compile with Torch-TensorRT if found, on a GPU; else LibTorch's passes, with a log "
          "line");
  in.read("max_batch_size", &config.max_batch_size, count_from(1),
          "most samples per forward pass; larger batches are split, also without TensorRT");
  in.read_choice("precision_mode", &config.precision_mode, {"FP32", "FP16"},
                 "TensorRT: precision of kernels");
  in.read("max_workspace_size_bytes", &config.max_workspace_size_bytes, at_least(0),
          "TensorRT: workspace in bytes");
  in.read("minimum_segment_size", &config.minimum_segment_size, count_from(1),
          "TensorRT: least operators in a compiled segment");
  in.read("is_dynamic_op", &config.is_dynamic_op,
          "TensorRT: one engine for all batch sizes up to max_batch_size, which is required");
  in.read("maximum_cached_engines", &config.maximum_cached_engines, count_from(1),
          "TensorRT: most engines kept, one per batch size");
  // One engine for all sizes is tuned for the largest one.
  if (config.is_dynamic_op && !config.max_batch_size)
    in.fault(
        "is_dynamic_op",
        "'is_dynamic_op: true' needs 'max_batch_size': the largest batch that its engine accepts");
  in.done();
  return config;
}

namespace {

constexpr const char* kLibrary = "liblockstep_tensorrt.so";
constexpr const char* kFunction = "lockstep_tensorrt_compile";
constexpr const char* kBuildIdFunction = "lockstep_tensorrt_build_id";

std::string module_path() {
  if (const char* named = std::getenv("LOCKSTEP_TENSORRT"); named != nullptr && *named != '\0')
    return named;
  std::error_code fault;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe", fault).parent_path();
  for (const auto& path : {folder / kLibrary, folder / "../lib/lockstep" / kLibrary})
    if (files::is_file(path)) return path.lexically_normal().string();
  return kLibrary;
}

/// Opens the library, which is never closed: engines contain its code.
CompileWithTensorrt open_library(std::string* fault) {
  const std::string path = module_path();
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  void* build_id = library == nullptr ? nullptr : ::dlsym(library, kBuildIdFunction);
  void* function = library == nullptr ? nullptr : ::dlsym(library, kFunction);
  if (build_id == nullptr || function == nullptr) {
    *fault = dl_error();
    return nullptr;
  }
  // Both sides share C++ types, so only the same build may be called.
  const std::string built = reinterpret_cast<TensorrtBuildId>(build_id)();
  if (built == LOCKSTEP_BUILD_ID) return reinterpret_cast<CompileWithTensorrt>(function);
  *fault = fmt::format("{} is of build '{}', this program of '{}': build both together", path,
                       built, LOCKSTEP_BUILD_ID);
  return nullptr;
}

}  // namespace

TensorrtAttempt try_tensorrt(const torch::jit::Module& module, const IoNodes& nodes,
                             const TensorrtConfig& config, at::Device device) {
  if (!device.is_cuda()) return {.module = nullptr, .why_not = "no GPU"};
  TensorrtAttempt attempt;
  const CompileWithTensorrt compile = open_library(&attempt.why_not);
  if (compile == nullptr) return attempt;
  try {
    attempt.module.reset(compile(module, nodes, config, device, &attempt.why_not));
  } catch (const std::exception& fault) {
    attempt.why_not = fault.what();
  }
  return attempt;
}

}  // namespace lockstep::infer
