#include "infer/engine/engine.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include "base/error.h"
#include "infer/engine/tensorrt.h"

namespace lockstep::infer {
namespace {

std::vector<at::Tensor> tensors_of(const c10::IValue& value) {
  if (value.isTensor()) return {value.toTensor()};
  std::vector<at::Tensor> tensors;
  if (value.isTensorList()) return value.toTensorVector();
  if (!value.isTuple())
    throw Error(ExitCode::kBadData, "infer",
                "the network gives a " + value.tagKind() + ", not a tensor or a tuple of tensors");
  for (const c10::IValue& item : value.toTupleRef().elements())
    for (const at::Tensor& tensor : tensors_of(item)) tensors.push_back(tensor);
  return tensors;
}

/// A TorchScript module, as it is or rewritten.
class ModuleEngine final : public EngineBackend {
 public:
  ModuleEngine(torch::jit::Module module, bool may_rewrite, std::string description)
      : module_(std::move(module)), may_rewrite_(may_rewrite), text_(std::move(description)) {}

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) override {
    const at::NoGradGuard no_grad;
    const torch::jit::GraphOptimizerEnabledGuard rewriting(may_rewrite_);
    return tensors_of(module_.forward({inputs.begin(), inputs.end()}));
  }
  std::string description() const override { return text_; }

 private:
  torch::jit::Module module_;
  const bool may_rewrite_;
  const std::string text_;
};

/// The network's own code.
class ForwardEngine final : public EngineBackend {
 public:
  ForwardEngine(std::function<at::Tensor(const at::Tensor&)> forward, std::string description)
      : forward_(std::move(forward)), text_(std::move(description)) {}

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) override {
    const at::NoGradGuard no_grad;
    return {forward_(inputs.at(0))};
  }
  std::string description() const override { return text_; }

 private:
  const std::function<at::Tensor(const at::Tensor&)> forward_;
  const std::string text_;
};

std::unique_ptr<EngineBackend> plain_engine(const LoadedNetwork& network, const std::string& why) {
  return std::make_unique<ModuleEngine>(*network.module, /*may_rewrite=*/false,
                                        "plain: the network as it was written" + why);
}

/// `why`: what was wanted and is not there; empty: nothing.
std::unique_ptr<EngineBackend> optimized_engine(const LoadedNetwork& network, at::Device device,
                                                const std::string& why) {
  try {
    torch::jit::Module frozen = torch::jit::freeze(*network.module);
    if (device.is_cpu()) frozen = torch::jit::optimize_for_inference(frozen);
    return std::make_unique<ModuleEngine>(
        frozen, /*may_rewrite=*/true,
        (device.is_cpu() ? "optimized: LibTorch's freeze and inference passes"
                         : "optimized: LibTorch's freeze") +
            why);
  } catch (const c10::Error& fault) {
    return plain_engine(network, std::string(" (LibTorch cannot freeze it: ") +
                                     fault.what_without_backtrace() + ")");
  }
}

}  // namespace

std::unique_ptr<EngineBackend> make_engine(const LoadedNetwork& network,
                                           const EngineOptions& options, at::Device device) {
  if (network.module == nullptr)
    return std::make_unique<ForwardEngine>(
        network.forward, "plain: the network's own code, which has no form as TorchScript");
  network.module->to(device);
  if (options.engine == "plain") return plain_engine(network, "");
  if (!options.tensorrt.use_tensorrt) return optimized_engine(network, device, "");
  TensorrtAttempt attempt = try_tensorrt(*network.module, network.nodes, options.tensorrt, device);
  if (attempt.module)
    return std::make_unique<ModuleEngine>(*attempt.module, /*may_rewrite=*/true,
                                          "Torch-TensorRT, " + options.tensorrt.precision_mode);
  return optimized_engine(network, device, " (no Torch-TensorRT: " + attempt.why_not + ")");
}

}  // namespace lockstep::infer
