// Names and shapes of the slots follow torch/optim/*.h. A new kind of optimizer needs a class here
// and a line in slots_of().
#include "checkpoint/objects/torch_slots.h"

#include <deque>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "base/error.h"

namespace lockstep::checkpoint {
namespace {

using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;
using IsSaved = std::function<bool(const std::string&)>;

void add(std::string name, const at::Tensor& slot, StateList* list) {
  if (slot.defined()) list->push_back({.key = std::move(name), .tensor = slot});
}

/// Returns zeros with the parameter's shape, strides and device.
at::Tensor zeros(const at::Tensor& param) {
  return at::zeros_like(param.detach(), {}, at::MemoryFormat::Preserve);
}

class SgdSlots final : public TorchSlots {
 public:
  StateList list(OptimizerParamState& state) const override {
    StateList slots;
    add("momentum_buffer", static_cast<torch::optim::SGDParamState&>(state).momentum_buffer(),
        &slots);
    return slots;
  }

  std::unique_ptr<OptimizerParamState> fresh(const at::Tensor& param,
                                             const OptimizerOptions& options,
                                             const IsSaved&) const override {
    // Without momentum SGD keeps no state.
    if (static_cast<const torch::optim::SGDOptions&>(options).momentum() == 0) return nullptr;
    auto state = std::make_unique<torch::optim::SGDParamState>();
    state->momentum_buffer(zeros(param));
    return state;
  }
};

/// Slots of Adam and AdamW, whose types are alike but not related.
template <typename State, typename Options>
class AdamSlots final : public TorchSlots {
 public:
  StateList list(OptimizerParamState& base) const override {
    auto& state = static_cast<State&>(base);
    StateList slots;
    add("step", view_of(&state.step()), &slots);
    add("exp_avg", state.exp_avg(), &slots);
    add("exp_avg_sq", state.exp_avg_sq(), &slots);
    add("max_exp_avg_sq", state.max_exp_avg_sq(), &slots);
    return slots;
  }

  std::unique_ptr<OptimizerParamState> fresh(const at::Tensor& param,
                                             const OptimizerOptions& options,
                                             const IsSaved&) const override {
    auto state = std::make_unique<State>();
    state->step(0);
    state->exp_avg(zeros(param));
    state->exp_avg_sq(zeros(param));
    if (static_cast<const Options&>(options).amsgrad()) state->max_exp_avg_sq(zeros(param));
    return state;
  }
};

class RmspropSlots final : public TorchSlots {
 public:
  StateList list(OptimizerParamState& base) const override {
    auto& state = static_cast<torch::optim::RMSpropParamState&>(base);
    StateList slots;
    add("step", view_of(&state.step()), &slots);
    add("square_avg", state.square_avg(), &slots);
    add("momentum_buffer", state.momentum_buffer(), &slots);
    add("grad_avg", state.grad_avg(), &slots);
    return slots;
  }

  std::unique_ptr<OptimizerParamState> fresh(const at::Tensor& param, const OptimizerOptions& base,
                                             const IsSaved&) const override {
    const auto& options = static_cast<const torch::optim::RMSpropOptions&>(base);
    auto state = std::make_unique<torch::optim::RMSpropParamState>();
    state->step(0);
    state->square_avg(zeros(param));
    if (options.momentum() > 0) state->momentum_buffer(zeros(param));
    if (options.centered()) state->grad_avg(zeros(param));
    return state;
  }
};

/// Slots of Adagrad, which exist from the start.
class AdagradSlots final : public TorchSlots {
 public:
  StateList list(OptimizerParamState& base) const override {
    auto& state = static_cast<torch::optim::AdagradParamState&>(base);
    StateList slots;
    add("step", view_of(&state.step()), &slots);
    add("sum", state.sum(), &slots);
    return slots;
  }

  std::unique_ptr<OptimizerParamState> fresh(const at::Tensor&, const OptimizerOptions&,
                                             const IsSaved&) const override {
    return nullptr;
  }
};

/// Slots of LBFGS. They are flat over all parameters and belong to the first one. The history of
/// directions, steps and their products grows up to history_size.
class LbfgsSlots final : public TorchSlots {
 public:
  explicit LbfgsSlots(const torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {}

  StateList list(OptimizerParamState& base) const override {
    auto& state = static_cast<torch::optim::LBFGSParamState&>(base);
    StateList slots;
    add("func_evals", view_of(&state.func_evals()), &slots);
    add("n_iter", view_of(&state.n_iter()), &slots);
    add("t", view_of_double(&state.t()), &slots);
    add("prev_loss", view_of_double(&state.prev_loss()), &slots);
    add("d", state.d(), &slots);
    add("H_diag", state.H_diag(), &slots);
    add("prev_flat_grad", state.prev_flat_grad(), &slots);
    add_history("old_dirs", state.old_dirs(), &slots);
    add_history("old_stps", state.old_stps(), &slots);
    add_history("ro", state.ro(), &slots);
    return slots;
  }

  std::unique_ptr<OptimizerParamState> fresh(const at::Tensor& param, const OptimizerOptions&,
                                             const IsSaved& is_saved) const override {
    // The state is flat over all parameters, so its size is their sum.
    int64_t num_elements = 0;
    for (const auto& group : optimizer_.param_groups())
      for (const at::Tensor& each : group.params()) num_elements += each.numel();
    const at::Tensor flat = at::zeros({num_elements}, param.detach().options());
    auto state = std::make_unique<torch::optim::LBFGSParamState>();
    if (is_saved("d")) state->d(flat.clone());
    // LBFGS keeps H_diag as the integer 1 until there is a history.
    const auto diagonal = is_saved("old_dirs/0") ? flat.options() : at::TensorOptions(at::kLong);
    if (is_saved("H_diag")) state->H_diag(at::zeros({}, diagonal));
    if (is_saved("prev_flat_grad")) state->prev_flat_grad(flat.clone());
    for (int64_t i = 0; is_saved(fmt::format("old_dirs/{}", i)); ++i) {
      state->old_dirs().push_back(flat.clone());
      state->old_stps().push_back(flat.clone());
      state->ro().push_back(at::zeros({}, flat.options()));
    }
    return state;
  }

 private:
  static at::Tensor view_of_double(double* number) {
    return at::from_blob(number, {}, at::TensorOptions(at::kDouble));
  }
  static void add_history(const char* name, const std::deque<at::Tensor>& tensors,
                          StateList* slots) {
    for (size_t i = 0; i < tensors.size(); ++i)
      add(fmt::format("{}/{}", name, i), tensors[i], slots);
  }

  const torch::optim::Optimizer& optimizer_;
};

}  // namespace

std::unique_ptr<TorchSlots> slots_of(const torch::optim::Optimizer& optimizer) {
  using namespace torch::optim;
  if (dynamic_cast<const SGD*>(&optimizer)) return std::make_unique<SgdSlots>();
  if (dynamic_cast<const Adam*>(&optimizer))
    return std::make_unique<AdamSlots<AdamParamState, AdamOptions>>();
  if (dynamic_cast<const AdamW*>(&optimizer))
    return std::make_unique<AdamSlots<AdamWParamState, AdamWOptions>>();
  if (dynamic_cast<const RMSprop*>(&optimizer)) return std::make_unique<RmspropSlots>();
  if (dynamic_cast<const Adagrad*>(&optimizer)) return std::make_unique<AdagradSlots>();
  if (dynamic_cast<const LBFGS*>(&optimizer)) return std::make_unique<LbfgsSlots>(optimizer);
  throw Error(ExitCode::kConfig, "checkpoint",
              "this optimizer's state is not known: SGD, Adam, AdamW, RMSprop, Adagrad and LBFGS "
              "are; for "
              "another, pass an object that lists its state (checkpoint/objects/trackable.h)");
}

}  // namespace lockstep::checkpoint
