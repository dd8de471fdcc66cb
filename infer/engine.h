#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/api/module.h>

#include "infer/saved_model.h"
#include "infer/tensorrt.h"

/// Engines: the ways of computing a network.
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

struct EngineOptions {
  std::string engine = "optimized";  ///< optimized | plain | sparse
  TensorrtConfig tensorrt;
};

/// Way of computing a network.
class EngineBackend {
 public:
  explicit EngineBackend(std::string description) : description_(std::move(description)) {}
  virtual ~EngineBackend() = default;
  EngineBackend(const EngineBackend&) = delete;
  EngineBackend& operator=(const EngineBackend&) = delete;

  /// Computes the outputs. `inputs` are in the order of the network's nodes, on the engine's
  /// device; outputs likewise. Keeps no gradients. Throws LibTorch's exceptions. Not thread-safe,
  /// unless takes_many_threads() is true.
  virtual std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) = 0;

  /// True if several threads may call run() at once.
  virtual bool takes_many_threads() const { return false; }

  /// Description for the log and the result.
  const std::string& description() const { return description_; }
  /// Table of the decisions for the last inputs. Empty if the engine makes none.
  virtual std::string explanation() const { return ""; }

 private:
  const std::string description_;
};

/// Creates an engine. `optimized` folds batch normalisation into convolutions, makes weights
/// constant and lays them out for the kernels. Results may differ in the last digits. With
/// use_tensorrt, Torch-TensorRT compiles the network. `plain` runs the operators as written, with
/// the bits of the run's evaluation. `sparse` needs the network's ONNX graph. It multiplies only
/// kept weights where that is faster by measurement (infer/sparse/sparse_network.h). Networks of an
/// ONNX file are computed by the same code with each engine, with all weights unless `sparse` is
/// chosen. If a way is not available, the next best is used, and description() gives the reason.
///
/// The network is moved to `device`. The engine owns it from then on. Throws Error(kUsage) for
/// `sparse` without a graph, on a GPU, or with an ONNX operator that is not supported.
std::unique_ptr<EngineBackend> make_engine(const LoadedNetwork& network,
                                           const EngineOptions& options, at::Device device);

}  // namespace lockstep::infer
