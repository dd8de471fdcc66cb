#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/api/module.h>

namespace lockstep::infer {

/// A frozen TorchScript module compiled by oneDNN Graph for inputs of one shape: a convolution and
/// what follows it (ReLU, sum, a depthwise convolution) become one kernel, and weights are laid out
/// for it once. Float on x86 CPUs.
///
///     if (auto fused = FusedModule::compile(frozen, inputs); fused && fused->takes(inputs))
///       outputs = fused->run(inputs);
class FusedModule {
 public:
  /// Runs `frozen` twice on `inputs`: LibTorch records their shapes, then it compiles. nullopt: the
  /// network has no convolution, oneDNN Graph cannot compile it, or the compiled one answers
  /// otherwise. One thread at a time; `frozen` is the result's from then on.
  static std::optional<FusedModule> compile(torch::jit::Module frozen,
                                            const std::vector<at::Tensor>& inputs);

  /// Whether these have the shapes, strides and types that it is compiled for.
  bool takes(const std::vector<at::Tensor>& inputs) const;

  /// Any number of threads at once. Throws what LibTorch throws.
  c10::IValue run(const std::vector<at::Tensor>& inputs);

 private:
  struct Form {
    at::ScalarType type;
    std::vector<int64_t> sizes, strides;
    bool operator==(const Form&) const = default;
  };
  static Form form_of(const at::Tensor& tensor);
  FusedModule(torch::jit::Module module, const std::vector<at::Tensor>& inputs);

  torch::jit::Module module_;
  std::vector<Form> forms_;
};

}  // namespace lockstep::infer
