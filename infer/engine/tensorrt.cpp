#include "infer/engine/tensorrt.h"

#include <cstdlib>

#include <dlfcn.h>
#include <torch/csrc/jit/api/module.h>

namespace lockstep::infer {
namespace {

constexpr const char* kLibrary = "liblockstep_tensorrt.so";
constexpr const char* kFunction = "lockstep_tensorrt_compile";

/// Stays open to the end of the process: engines hold code of it.
CompileWithTensorrt open_library(std::string* fault) {
  const char* named = std::getenv("LOCKSTEP_TENSORRT");
  void* library = ::dlopen(named != nullptr ? named : kLibrary, RTLD_NOW | RTLD_LOCAL);
  void* function = library == nullptr ? nullptr : ::dlsym(library, kFunction);
  if (function != nullptr) return reinterpret_cast<CompileWithTensorrt>(function);
  const char* text = ::dlerror();
  *fault = text == nullptr ? "its module cannot be opened" : text;
  return nullptr;
}

}  // namespace

TensorrtAttempt try_tensorrt(const torch::jit::Module& module, const IoNodes& nodes,
                             const TensorrtConfig& config, at::Device device) {
  if (!device.is_cuda()) return {.module = nullptr, .why_not = "there is no GPU"};
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
