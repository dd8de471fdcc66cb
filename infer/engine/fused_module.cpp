#include "infer/engine/fused_module.h"

#include <algorithm>
#include <exception>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <torch/csrc/jit/codegen/onednn/interface.h>
#include <torch/csrc/jit/passes/pass_manager.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include "base/log.h"

namespace lockstep::infer {
namespace {

#if defined(__x86_64__)  // LibTorch has oneDNN Graph on x86-64 only

/// LibTorch's passes apply to the whole process. This flag limits ours to the compiling thread.
thread_local bool t_compiles = false;

class Compiling {
 public:
  Compiling() {
    static const auto registered =
        torch::jit::registerPrePass([](std::shared_ptr<torch::jit::Graph>& graph) {
          if (t_compiles) torch::jit::fuser::onednn::fuseGraph(graph);
        });
    static_cast<void>(registered);
    t_compiles = true;
  }
  ~Compiling() { t_compiles = false; }
  Compiling(const Compiling&) = delete;
  Compiling& operator=(const Compiling&) = delete;
};

bool can_compile() { return true; }

#else

struct Compiling {};
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
    const Compiling compiling;
    // LibTorch's profiling executor: the first run records shapes, the second one compiles and
    // runs.
    const c10::IValue as_written = fused.run(inputs);
    if (is_close(as_written, fused.run(inputs))) return fused;
    // A wrong kernel must not go unnoticed, so both runs are compared.
    log::warning("infer", "oneDNN Graph's numbers differ from the network's: it is left out");
  } catch (const std::exception& fault) {
    log::debug("infer", std::string("oneDNN Graph does not take this network: ") + fault.what());
  }
  return std::nullopt;
}

bool FusedModule::takes(const std::vector<at::Tensor>& inputs) const {
  return std::ranges::equal(inputs, forms_, [](const at::Tensor& input, const Form& form) {
    return form_of(input) == form;
  });
}

c10::IValue FusedModule::run(const std::vector<at::Tensor>& inputs) {
  const at::NoGradGuard no_grad;
  // Skips autograd's dispatch, which costs time in each operator.
  const at::AutoDispatchBelowADInplaceOrView no_view_tracking;
  const torch::jit::GraphOptimizerEnabledGuard rewriting(true);
  return module_.forward({inputs.begin(), inputs.end()});
}

}  // namespace lockstep::infer
