#include "infer/engine.h"

#include <algorithm>
#include <exception>
#include <mutex>

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/jit/codegen/onednn/interface.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/passes/pass_manager.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/runtime/graph_iterator.h>

#include "base/error.h"
#include "base/log.h"
#include "infer/sparse/sparse_network.h"

namespace lockstep::infer {
namespace {

#if defined(__x86_64__)  // LibTorch has oneDNN Graph on x86-64 only

/// LibTorch's passes apply to the whole process. This flag limits ours to the compiling thread.
thread_local bool t_compiles = false;

/// Returns a scope in which this thread compiles.
auto compiling() {
  [[maybe_unused]] static const auto registered =
      torch::jit::registerPrePass([](std::shared_ptr<torch::jit::Graph>& graph) {
        if (t_compiles) torch::jit::fuser::onednn::fuseGraph(graph);
      });
  t_compiles = true;
  return c10::make_scope_exit([] { t_compiles = false; });
}

bool can_compile() { return true; }

#else

bool compiling() { return false; }
bool can_compile() { return false; }

#endif

/// True if the graph has a convolution. Fusion is only tried for such networks.
bool has_convolutions(const torch::jit::Module& frozen) {
  const auto graph = frozen.get_method("forward").graph();
  return std::ranges::any_of(graph->nodes(), [](const torch::jit::Node* node) {
    const std::string_view kind = node->kind().toUnqualString();
    return kind.starts_with("conv") || kind == "_convolution";
  });
}

std::vector<at::Tensor> all_tensors_of(const c10::IValue& value) {
  std::vector<at::Tensor> tensors;
  value.visit([&](const c10::IValue& part) {
    if (part.isTensor()) tensors.push_back(part.toTensor());
    return false;
  });
  return tensors;
}

/// Compares results up to the rounding of sums in another order.
bool is_close(const c10::IValue& one, const c10::IValue& other) {
  constexpr double kRelative = 1e-4;
  return std::ranges::equal(all_tensors_of(one), all_tensors_of(other),
                            [](const at::Tensor& a, const at::Tensor& b) {
                              if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type())
                                return false;
                              if (a.numel() == 0 || !a.is_floating_point()) return a.equal(b);
                              const double absolute = kRelative * a.abs().max().item<double>();
                              return at::allclose(a, b, kRelative, absolute, /*equal_nan=*/true);
                            });
}

/// Calls a module without gradients. may_rewrite: LibTorch may optimise its graph.
c10::IValue call(torch::jit::Module* module, const std::vector<at::Tensor>& inputs,
                 bool may_rewrite) {
  const at::NoGradGuard no_grad;
  // Skips autograd's dispatch, which costs time in each operator.
  const at::AutoDispatchBelowADInplaceOrView no_view_tracking;
  const torch::jit::GraphOptimizerEnabledGuard rewriting(may_rewrite);
  return module->forward({inputs.begin(), inputs.end()});
}

}  // namespace

FusedModule::Form FusedModule::form_of(const at::Tensor& tensor) {
  return {tensor.scalar_type(), tensor.sizes().vec(), tensor.strides().vec()};
}

FusedModule::FusedModule(torch::jit::Module module, const std::vector<at::Tensor>& inputs)
    : module_(std::move(module)) {
  for (const at::Tensor& input : inputs) forms_.push_back(form_of(input));
}

std::optional<FusedModule> FusedModule::compile(torch::jit::Module frozen,
                                                const std::vector<at::Tensor>& inputs) {
  if (!can_compile() || !has_convolutions(frozen)) return std::nullopt;
  try {
    FusedModule fused(std::move(frozen), inputs);
    [[maybe_unused]] const auto scope = compiling();
    // LibTorch's profiling executor: the first run records shapes, the second one compiles and
    // runs.
    const c10::IValue as_written = fused.run(inputs);
    if (is_close(as_written, fused.run(inputs))) return fused;
    // A wrong kernel must not go unnoticed, so both runs are compared.
    log::warning("infer", "oneDNN Graph's results differ from the network's: it is not used");
  } catch (const std::exception& fault) {
    log::debug("infer", std::string("oneDNN Graph does not support this network: ") + fault.what());
  }
  return std::nullopt;
}

bool FusedModule::takes(const std::vector<at::Tensor>& inputs) const {
  return std::ranges::equal(inputs, forms_, [](const at::Tensor& input, const Form& form) {
    return form_of(input) == form;
  });
}

c10::IValue FusedModule::run(const std::vector<at::Tensor>& inputs) {
  return call(&module_, inputs, /*may_rewrite=*/true);
}

namespace {

std::vector<at::Tensor> tensors_of(const c10::IValue& value) {
  if (value.isTensor()) return {value.toTensor()};
  std::vector<at::Tensor> tensors;
  if (value.isTensorList()) return value.toTensorVector();
  if (!value.isTuple())
    throw Error(
        ExitCode::kBadData, "infer",
        "the network returns a " + value.tagKind() + ", not a tensor or a tuple of tensors");
  for (const c10::IValue& item : value.toTupleRef().elements())
    for (const at::Tensor& tensor : tensors_of(item)) tensors.push_back(tensor);
  return tensors;
}

/// Engine of a TorchScript module, as written or rewritten.
class ModuleEngine final : public EngineBackend {
 public:
  ModuleEngine(torch::jit::Module module, bool may_rewrite, std::string description)
      : EngineBackend(std::move(description)),
        module_(std::move(module)),
        may_rewrite_(may_rewrite) {}

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) override {
    return tensors_of(call(&module_, inputs, may_rewrite_));
  }

 private:
  torch::jit::Module module_;
  const bool may_rewrite_;
};

/// Engine of a frozen network on the CPU. Inputs with the shape of the first ones use a fused
/// module, others one that is laid out for oneDNN. Both are compiled at their first use.
class FrozenEngine final : public EngineBackend {
 public:
  FrozenEngine(torch::jit::Module module, std::string description)
      : EngineBackend(std::move(description)), module_(std::move(module)) {}

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) override {
    // freeze() copies: the module itself stays usable for the second form.
    std::call_once(compiled_,
                   [&] { fused_ = FusedModule::compile(torch::jit::freeze(module_), inputs); });
    if (fused_ && fused_->takes(inputs)) return tensors_of(fused_->run(inputs));
    std::call_once(laid_out_once_, [&] {
      torch::jit::Module frozen = torch::jit::freeze(module_);
      laid_out_ = torch::jit::optimize_for_inference(frozen);
    });
    return tensors_of(call(&*laid_out_, inputs, /*may_rewrite=*/true));
  }
  bool takes_many_threads() const override { return true; }

 private:
  torch::jit::Module module_;
  std::once_flag compiled_, laid_out_once_;
  std::optional<FusedModule> fused_;
  std::optional<torch::jit::Module> laid_out_;
};

/// Number of multiplications up to which a batch is faster without oneDNN. A call of oneDNN needs
/// about 30 us before it computes anything.
constexpr int64_t kSmallMultiplications = int64_t{1} << 23;
/// Networks with more weights than this have no batches that are small enough.
constexpr int64_t kMostWeightsOfSmall = kSmallMultiplications / 16;

/// Engine of a frozen network on the CPU: the plain frozen module for small batches, `large` for
/// others. The choice depends only on the network and the shapes of its inputs.
class TwoWayEngine final : public EngineBackend {
 public:
  TwoWayEngine(torch::jit::Module small, std::unique_ptr<EngineBackend> large, int64_t num_weights)
      : EngineBackend(large->description()),
        num_weights_(num_weights),
        small_(std::move(small)),
        large_(std::move(large)) {}

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) override {
    if (!is_small(inputs)) return large_->run(inputs);
    // Convolutions use LibTorch's own code. The setting is global, so this engine allows one
    // thread.
    at::Context& context = at::globalContext();
    const auto restore = c10::make_scope_exit([&, was_enabled = context.userEnabledMkldnn()] {
      context.setUserEnabledMkldnn(was_enabled);
    });
    context.setUserEnabledMkldnn(false);
    return tensors_of(call(&small_, inputs, /*may_rewrite=*/true));
  }

 private:
  /// Estimates the work as if each weight met each input value once, the most for stride 1.
  bool is_small(const std::vector<at::Tensor>& inputs) const {
    int64_t num_values = 0;
    for (const at::Tensor& input : inputs) num_values += input.numel();
    return num_values <= kSmallMultiplications / std::max<int64_t>(num_weights_, 1);
  }

  const int64_t num_weights_;
  torch::jit::Module small_;
  std::unique_ptr<EngineBackend> large_;
};

/// Number of constant tensor elements in a frozen network's graph.
int64_t count_weights(const torch::jit::Module& frozen) {
  int64_t count = 0;
  auto graph = frozen.get_method("forward").graph();
  torch::jit::DepthFirstGraphNodeIterator nodes(graph);
  while (torch::jit::Node* node = nodes.next()) {
    if (node->kind() != c10::prim::Constant) continue;
    const auto value = torch::jit::toIValue(node->output());
    if (value && value->isTensor()) count += value->toTensor().numel();
  }
  return count;
}

/// Engine that calls the network's own code.
class ForwardEngine final : public EngineBackend {
 public:
  ForwardEngine(std::function<at::Tensor(const at::Tensor&)> forward, std::string description)
      : EngineBackend(std::move(description)), forward_(std::move(forward)) {}

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) override {
    const at::NoGradGuard no_grad;
    return {forward_(inputs.at(0))};
  }

 private:
  const std::function<at::Tensor(const at::Tensor&)> forward_;
};

/// Records an ONNX graph as frozen TorchScript, for inputs of these shapes.
torch::jit::Module traced(SparseNetwork* network, const std::vector<at::Tensor>& inputs) {
  const auto run = [network](const torch::jit::Stack& stack) {
    std::vector<at::Tensor> feed;
    for (const c10::IValue& input : stack) feed.push_back(input.toTensor());
    const std::vector<at::Tensor> outputs = network->run_plain(feed);
    return torch::jit::Stack{c10::ivalue::Tuple::create({outputs.begin(), outputs.end()})};
  };
  torch::jit::Module module("Traced");
  const auto state = torch::jit::tracer::trace(
                         {inputs.begin(), inputs.end()}, run, [](const auto&) { return ""; },
                         /*strict=*/true, /*force_outplace=*/true, &module)
                         .first;
  module.type()->addMethod(module._ivalue()->compilation_unit()->create_function(
      c10::QualifiedName(*module.type()->name(), "forward"), state->graph));
  module.eval();
  return torch::jit::freeze(module);
}

/// Engine of an ONNX graph.
class GraphEngine final : public EngineBackend {
 public:
  /// name: `sparse` uses only kept weights where that is faster, `optimized` compiles the graph.
  /// dense: the same network as TorchScript, or null.
  GraphEngine(const OnnxGraph& graph, const std::string& name, std::unique_ptr<EngineBackend> dense)
      : EngineBackend(name == "sparse"  ? "sparse: only kept weights where that is faster"
                      : name == "plain" ? "plain: oneDNN's layers of an ONNX graph"
                                        : "optimized: an ONNX graph, compiled for oneDNN"),
        chooses_(name == "sparse"),
        tried_to_compile_(name == "plain"),
        network_(graph),
        dense_(std::move(dense)) {}

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) override {
    if (!chooses_) return run_dense(inputs);
    if (!dense_ && network_.has_integers()) return network_.run(inputs);
    return network_.run(inputs, [this](const auto& feed) { return run_dense(feed); });
  }
  std::string explanation() const override { return network_.explanation(); }

 private:
  std::vector<at::Tensor> run_dense(const std::vector<at::Tensor>& inputs) {
    if (dense_) return dense_->run(inputs);
    // Inputs that are empty or do not fit compile nothing; the next ones may.
    const bool tries = !tried_to_compile_ && inputs.at(0).numel() > 0;
    if (tries) compile(inputs);
    std::vector<at::Tensor> outputs = compiled_ && compiled_->takes(inputs)
                                          ? tensors_of(compiled_->run(inputs))
                                          : network_.run_dense(inputs);
    tried_to_compile_ = tried_to_compile_ || tries;
    return outputs;
  }
  void compile(const std::vector<at::Tensor>& inputs) {
    if (network_.has_integers()) return;
    // The caller may have left out dispatch keys. A tracer needs its own.
    const c10::impl::ForceDispatchKeyGuard all_keys(c10::default_included_set,
                                                    c10::default_excluded_set);
    try {
      compiled_ = FusedModule::compile(traced(&network_, inputs), inputs);
    } catch (const std::exception& fault) {
      log::debug("infer", std::string("the ONNX graph is not compiled: ") + fault.what());
    }
  }

  const bool chooses_;
  bool tried_to_compile_;  // or it is not wanted
  SparseNetwork network_;
  const std::unique_ptr<EngineBackend> dense_;
  std::optional<FusedModule> compiled_;  // for the shape of the first inputs
};

std::unique_ptr<EngineBackend> plain_engine(const LoadedNetwork& network, const std::string& why) {
  return std::make_unique<ModuleEngine>(*network.module, /*may_rewrite=*/false,
                                        "plain: the network as it was written" + why);
}

/// Creates the optimised engine. why: reason why another one is not used, for the description.
std::unique_ptr<EngineBackend> optimized_engine(const LoadedNetwork& network, at::Device device,
                                                const std::string& why) {
  try {
    torch::jit::Module frozen = torch::jit::freeze(*network.module);
    if (!device.is_cpu())
      return std::make_unique<ModuleEngine>(frozen, /*may_rewrite=*/true,
                                            "optimized: LibTorch's freeze" + why);
    const int64_t num_weights = count_weights(frozen);
    auto large = std::make_unique<FrozenEngine>(
        *network.module, "optimized: LibTorch's freeze and inference passes" + why);
    if (num_weights > kMostWeightsOfSmall) return large;
    return std::make_unique<TwoWayEngine>(frozen, std::move(large), num_weights);
  } catch (const c10::Error& fault) {
    // Some modules cannot be frozen: they still run as they are.
    return plain_engine(network, std::string(" (LibTorch cannot freeze it: ") +
                                     fault.what_without_backtrace() + ")");
  }
}

/// Creates the engine of the network's ONNX graph.
std::unique_ptr<EngineBackend> graph_engine(const LoadedNetwork& network, const std::string& name,
                                            at::Device device) {
  if (!network.graph)
    throw Error(ExitCode::kUsage, "infer",
                network.source +
                    ": engine sparse needs the network as ONNX: give --checkpoint, an export of a "
                    "run with export.onnx, or the file of 'lockstep ckpt export --format onnx' as "
                    "--saved_model");
  if (!device.is_cpu())
    throw Error(ExitCode::kUsage, "infer",
                network.source + ": ONNX graphs are computed on the CPU: set gpu or device to cpu");
  return std::make_unique<GraphEngine>(
      *network.graph, name, network.module ? optimized_engine(network, device, "") : nullptr);
}

}  // namespace

std::unique_ptr<EngineBackend> make_engine(const LoadedNetwork& network,
                                           const EngineOptions& options, at::Device device) {
  const bool is_sparse = options.engine == "sparse";
  if (is_sparse || (network.graph && !network.module))
    return graph_engine(network, options.engine, device);
  if (network.module == nullptr)
    return std::make_unique<ForwardEngine>(
        network.forward, "plain: the network's own code, which cannot be converted to TorchScript");
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
