// Hooks on autograd's AccumulateGrad nodes: they run once the gradient is in `grad`. (Hooks of
// tensors would run before that.)
#include "dist/reducer/gradient_hooks.h"

#include <unordered_map>
#include <utility>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace lockstep::dist {
namespace {

using torch::autograd::variable_list;

/// Post-hook of one parameter's accumulator node.
class TellParam final : public torch::autograd::FunctionPostHook {
 public:
  TellParam(const GradientHooks::Listener& listener, int64_t param)
      : listener_(listener), param_(param) {}

  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    listener_(param_);
    return outputs;
  }

 private:
  const GradientHooks::Listener& listener_;
  int64_t param_;
};

}  // namespace

/// The node that accumulates a parameter's gradients. Holding it makes LibTorch reuse it in the
/// next graph.
struct GradientHooks::Hook {
  int64_t param;
  std::shared_ptr<torch::autograd::Node> accumulator;
  std::uintptr_t key;
};

GradientHooks::GradientHooks(const ParamTable& params, Listener on_gradient)
    : on_gradient_(std::move(on_gradient)) {
  for (size_t i = 0; i < params.size(); ++i) {
    if (!params[i].tensor.requires_grad()) continue;
    auto accumulator = torch::autograd::impl::grad_accumulator(params[i].tensor);
    const std::uintptr_t key = accumulator->add_post_hook(
        std::make_unique<TellParam>(on_gradient_, static_cast<int64_t>(i)));
    hooks_.push_back({static_cast<int64_t>(i), std::move(accumulator), key});
  }
}

std::vector<int64_t> GradientHooks::with_one_source(const at::Tensor& root) const {
  // Walks the whole graph once. An accumulator with one incoming edge has one source.
  std::unordered_map<const torch::autograd::Node*, int64_t> num_edges_to;
  std::vector<const torch::autograd::Node*> open{root.grad_fn().get()};
  while (!open.empty()) {
    const torch::autograd::Node* const node = open.back();
    open.pop_back();
    if (node == nullptr) continue;
    for (const torch::autograd::Edge& edge : node->next_edges())
      if (++num_edges_to[edge.function.get()] == 1) open.push_back(edge.function.get());
  }
  std::vector<int64_t> params;
  for (const Hook& hook : hooks_)
    if (num_edges_to[hook.accumulator.get()] == 1) params.push_back(hook.param);
  return params;
}

GradientHooks::~GradientHooks() {
  for (const Hook& hook : hooks_) hook.accumulator->del_post_hook(hook.key);
}

}  // namespace lockstep::dist
