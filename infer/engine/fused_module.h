#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/api/module.h>

namespace lockstep::infer {

/// Frozen TorchScript module, compiled by oneDNN Graph for inputs of one shape. A convolution and
/// its successors (ReLU, sum, a depthwise convolution) become one kernel. Weights are laid out for
/// it once. Float32 on x86 CPUs.
///
///     if (auto fused = FusedModule::compile(frozen, inputs); fused && fused->takes(inputs))
///       outputs = fused->run(inputs);
class FusedModule {
 public:
  /// Compiles a module by two runs on `inputs`: LibTorch first records the shapes, then compiles.
  /// Returns nullopt if the network has no convolution, oneDNN Graph cannot compile it, or the
  /// compiled module gives other results. Not thread-safe. The result owns `frozen`.
  static std::optional<FusedModule> compile(torch::jit::Module frozen,
                                            const std::vector<at::Tensor>& inputs);

  /// True if these inputs have the compiled shapes, strides and types.
  bool takes(const std::vector<at::Tensor>& inputs) const;

  /// Computes the outputs. Thread-safe. Throws LibTorch's exceptions.
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
