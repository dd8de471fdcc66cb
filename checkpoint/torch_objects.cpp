#include "checkpoint/torch_objects.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <initializer_list>
#include <string>
#include <utility>

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
#include "base/tensors/params.h"
#include "base/tensors/state_list.h"
#include "checkpoint/torch_script.h"

namespace lockstep::checkpoint {

// Slots: names and shapes follow torch/optim/*.h. A new kind of optimizer needs a class here and a
// line in slots_of().

namespace {

using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;
using IsSaved = std::function<bool(const std::string&)>;

using ParamState = std::unique_ptr<OptimizerParamState>;

/// State that one kind of LibTorch's optimizers keeps for a parameter.
struct TorchSlots {
  /// Returns the existing slots by name; the tensors are live memory of `state`.
  std::function<StateList(OptimizerParamState& state)> list;
  /// Returns the state that the first step would start with, all slots 0; null if these options
  /// need none. `is_saved` answers for a slot by name, for slots whose number grows with the steps.
  std::function<ParamState(const at::Tensor& param, const OptimizerOptions& options,
                           const IsSaved& is_saved)>
      fresh;
};

/// Returns slots by functions on one optimizer's own types of state and options.
template <typename State, typename Options, typename List, typename Fresh>
TorchSlots slots_by(const List& list, const Fresh& fresh) {
  return {[list](OptimizerParamState& state) { return list(static_cast<State&>(state)); },
          [fresh](const at::Tensor& param, const OptimizerOptions& options,
                  const IsSaved& is_saved) -> ParamState {
            return fresh(param, static_cast<const Options&>(options), is_saved);
          }};
}

/// Adds a tensor if it is defined.
void add(std::string name, const at::Tensor& tensor, StateList* list) {
  if (tensor.defined()) list->push_back({.key = std::move(name), .tensor = tensor});
}

/// Returns those of the tensors that are defined.
StateList defined(std::initializer_list<std::pair<const char*, at::Tensor>> tensors) {
  StateList list;
  for (const auto& [name, tensor] : tensors) add(name, tensor, &list);
  return list;
}

/// Returns zeros with the parameter's shape, strides and device.
at::Tensor zeros(const at::Tensor& param) {
  return at::zeros_like(param.detach(), {}, at::MemoryFormat::Preserve);
}

TorchSlots sgd_slots() {
  using State = torch::optim::SGDParamState;
  using Options = torch::optim::SGDOptions;
  return slots_by<State, Options>(
      [](State& state) {
        return defined({{"momentum_buffer", state.momentum_buffer()}});
      },
      [](const at::Tensor& param, const Options& options, const IsSaved&) -> ParamState {
        // Without momentum SGD keeps no state.
        if (options.momentum() == 0) return nullptr;
        auto state = std::make_unique<State>();
        state->momentum_buffer(zeros(param));
        return state;
      });
}

/// Returns the slots of Adam or AdamW, whose types are alike but not related.
template <typename State, typename Options>
TorchSlots adam_slots() {
  return slots_by<State, Options>(
      [](State& state) {
        return defined({{"step", view_of(&state.step())},
                        {"exp_avg", state.exp_avg()},
                        {"exp_avg_sq", state.exp_avg_sq()},
                        {"max_exp_avg_sq", state.max_exp_avg_sq()}});
      },
      [](const at::Tensor& param, const Options& options, const IsSaved&) {
        auto state = std::make_unique<State>();
        state->step(0);
        state->exp_avg(zeros(param));
        state->exp_avg_sq(zeros(param));
        if (options.amsgrad()) state->max_exp_avg_sq(zeros(param));
        return state;
      });
}

TorchSlots rmsprop_slots() {
  using State = torch::optim::RMSpropParamState;
  using Options = torch::optim::RMSpropOptions;
  return slots_by<State, Options>(
      [](State& state) {
        return defined({{"step", view_of(&state.step())},
                        {"square_avg", state.square_avg()},
                        {"momentum_buffer", state.momentum_buffer()},
                        {"grad_avg", state.grad_avg()}});
      },
      [](const at::Tensor& param, const Options& options, const IsSaved&) {
        auto state = std::make_unique<State>();
        state->step(0);
        state->square_avg(zeros(param));
        if (options.momentum() > 0) state->momentum_buffer(zeros(param));
        if (options.centered()) state->grad_avg(zeros(param));
        return state;
      });
}

/// Returns the slots of Adagrad, which exist from the start.
TorchSlots adagrad_slots() {
  using State = torch::optim::AdagradParamState;
  return slots_by<State, OptimizerOptions>(
      [](State& state) {
        return defined({{"step", view_of(&state.step())}, {"sum", state.sum()}});
      },
      [](const at::Tensor&, const OptimizerOptions&, const IsSaved&) { return nullptr; });
}

StateList list_lbfgs(torch::optim::LBFGSParamState& state) {
  const auto view_of_double = [](double* number) {
    return at::from_blob(number, {}, at::TensorOptions(at::kDouble));
  };
  StateList slots = defined({{"func_evals", view_of(&state.func_evals())},
                             {"n_iter", view_of(&state.n_iter())},
                             {"t", view_of_double(&state.t())},
                             {"prev_loss", view_of_double(&state.prev_loss())},
                             {"d", state.d()},
                             {"H_diag", state.H_diag()},
                             {"prev_flat_grad", state.prev_flat_grad()}});
  const auto add_history = [&](const char* name, const std::deque<at::Tensor>& tensors) {
    for (size_t i = 0; i < tensors.size(); ++i)
      add(fmt::format("{}/{}", name, i), tensors[i], &slots);
  };
  add_history("old_dirs", state.old_dirs());
  add_history("old_stps", state.old_stps());
  add_history("ro", state.ro());
  return slots;
}

/// Returns the slots of LBFGS. They are flat over all parameters and belong to the first one. The
/// history of directions, steps and their products grows up to history_size.
TorchSlots lbfgs_slots(const torch::optim::Optimizer& optimizer) {
  using State = torch::optim::LBFGSParamState;
  return slots_by<State, OptimizerOptions>(list_lbfgs, [&optimizer](const at::Tensor& param,
                                                                    const OptimizerOptions&,
                                                                    const IsSaved& is_saved) {
    // The state is flat over all parameters, so its size is their sum.
    int64_t num_elements = 0;
    for (const auto& group : optimizer.param_groups())
      for (const at::Tensor& each : group.params()) num_elements += each.numel();
    const at::Tensor flat = at::zeros({num_elements}, param.detach().options());
    auto state = std::make_unique<State>();
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
  });
}

/// Returns the slots of an optimizer, which must outlive the result. Throws Error(kConfig) for an
/// unknown kind.
TorchSlots slots_of(const torch::optim::Optimizer& optimizer) {
  using namespace torch::optim;
  if (dynamic_cast<const SGD*>(&optimizer)) return sgd_slots();
  if (dynamic_cast<const Adam*>(&optimizer)) return adam_slots<AdamParamState, AdamOptions>();
  if (dynamic_cast<const AdamW*>(&optimizer)) return adam_slots<AdamWParamState, AdamWOptions>();
  if (dynamic_cast<const RMSprop*>(&optimizer)) return rmsprop_slots();
  if (dynamic_cast<const Adagrad*>(&optimizer)) return adagrad_slots();
  if (dynamic_cast<const LBFGS*>(&optimizer)) return lbfgs_slots(optimizer);
  throw Error(
      ExitCode::kConfig, "checkpoint",
      "this optimizer's state is unknown: SGD, Adam, AdamW, RMSprop, Adagrad and LBFGS are "
      "supported; for another, pass an object that lists its state (checkpoint/trackable.h)");
}

// Optimizers: slots under the names of their parameters. LibTorch has no way to create one slot, so
// a restore replaces a parameter's whole state object.

class TorchOptimizer final : public Trackable {
 public:
  explicit TorchOptimizer(torch::optim::Optimizer& optimizer)
      : optimizer_(optimizer), slots_(slots_of(optimizer)) {}

  StateList state(const TensorNames& names) override {
    StateList list;
    for_each_param(names, [&](const std::string& name, const at::Tensor& param, const auto&) {
      const auto place = optimizer_.state().find(param.unsafeGetTensorImpl());
      if (place == optimizer_.state().end()) return;
      for (StateEntry& slot : slots_.list(*place->second)) {
        slot.key = name + "/" + slot.key;
        list.push_back(std::move(slot));
      }
    });
    return list;
  }

  /// Creates missing slots. On the first call of a restore, every parameter then has exactly the
  /// slots that the checkpoint has for it. This applies only if the checkpoint has any slot of this
  /// optimizer. Otherwise slots of later steps would remain next to the saved ones.
  void make_saved(const std::function<bool(const std::string&)>& is_saved, const TensorNames& names,
                  bool is_first) override {
    discard_made();
    std::vector<std::pair<void*, ParamState>> fresh;
    bool holds_any = false;
    for_each_param(names, [&](const std::string& name, const at::Tensor& param,
                              const torch::optim::OptimizerOptions& options) {
      ParamState state = slots_.fresh(
          param, options, [&](const std::string& slot) { return is_saved(name + "/" + slot); });
      if (!state) return;  // its slots exist from the start, or it has none
      const std::vector<std::string> slots = names_in(*state);
      const bool is_held = std::any_of(slots.begin(), slots.end(), [&](const std::string& slot) {
        return is_saved(name + "/" + slot);
      });
      holds_any = holds_any || is_held;
      void* const impl = param.unsafeGetTensorImpl();
      const auto live = optimizer_.state().find(impl);
      const bool is_there = live != optimizer_.state().end();
      if (is_held && (!is_there || (is_first && names_in(*live->second) != slots)))
        fresh.emplace_back(impl, std::move(state));
      else if (!is_held && is_there && is_first)
        fresh.emplace_back(impl, nullptr);
    });
    if (!holds_any) return;  // saved without this optimizer, or before its first step
    for (auto& [impl, state] : fresh) replaced_.emplace_back(impl, put(impl, std::move(state)));
  }

  void discard_made() override {
    for (auto& [impl, state] : replaced_) put(impl, std::move(state));
    replaced_.clear();
  }
  void restored() override { replaced_.clear(); }

 private:
  std::vector<std::string> names_in(torch::optim::OptimizerParamState& state) const {
    std::vector<std::string> names;
    for (const StateEntry& slot : slots_.list(state)) names.push_back(slot.key);
    return names;
  }

  /// Sets the state of a parameter, null for none; returns the previous one.
  ParamState put(void* impl, ParamState state) {
    auto& states = optimizer_.state();
    ParamState before;
    if (const auto place = states.find(impl); place != states.end()) {
      before = std::move(place->second);
      states.erase(place);
    }
    if (state) states[impl] = std::move(state);
    return before;
  }

  template <typename Use>
  void for_each_param(const TensorNames& names, const Use& use) {
    int place = 0;
    for (torch::optim::OptimizerParamGroup& group : optimizer_.param_groups())
      for (const at::Tensor& param : group.params()) {
        const auto name = names.find(param.unsafeGetTensorImpl());
        use(name == names.end() ? fmt::format("param{}", place) : name->second, param,
            group.options());
        ++place;
      }
  }

  torch::optim::Optimizer& optimizer_;
  const TorchSlots slots_;
  std::vector<std::pair<void*, ParamState>> replaced_;  // previous states; null: none
};

}  // namespace

std::shared_ptr<Trackable> track_optimizer(torch::optim::Optimizer& optimizer) {
  return std::make_shared<TorchOptimizer>(optimizer);
}

// Modules: adapter between torch::nn::Module and Trackable.

namespace {

class TorchModule final : public Trackable {
 public:
  explicit TorchModule(std::shared_ptr<torch::nn::Module> module) : module_(std::move(module)) {}

  StateList state(const TensorNames&) override {
    StateList list = variables();
    for (const auto& named : module_->named_buffers())
      add(slashed(named.key()), named.value(), &list);
    return list;
  }

  StateList variables() override {
    StateList list;
    for (const auto& named : module_->named_parameters())
      add(slashed(named.key()), named.value(), &list);
    return list;
  }

  std::vector<LatePart> late_parts() override {
    std::vector<LatePart> parts;
    for (const auto& named : module_->named_modules("", /*include_self=*/true))
      if (auto* part = dynamic_cast<DeferredVariables*>(named.value().get()))
        parts.push_back({named.key().empty() ? "" : slashed(named.key()) + "/", part});
    return parts;
  }

 private:
  std::shared_ptr<torch::nn::Module> module_;
};

}  // namespace

std::shared_ptr<Trackable> track_module(std::shared_ptr<torch::nn::Module> module) {
  if (!module) throw Error(ExitCode::kUsage, "checkpoint", "a null module cannot be tracked");
  return std::make_shared<TorchModule>(std::move(module));
}

// TorchScript: adapter between torch::jit::Module and Trackable.

namespace {

class ScriptModule final : public Trackable {
 public:
  explicit ScriptModule(torch::jit::Module module) : module_(std::move(module)) {}

  StateList state(const TensorNames&) override {
    StateList list = variables();
    for (const auto& named : module_.named_buffers(/*recurse=*/true))
      add(slashed(named.name), named.value, &list);
    return list;
  }

  StateList variables() override {
    StateList list;
    for (const auto& named : module_.named_parameters(/*recurse=*/true))
      add(slashed(named.name), named.value, &list);
    return list;
  }

 private:
  torch::jit::Module module_;
};

}  // namespace

std::shared_ptr<Trackable> track_script_module(torch::jit::Module module) {
  return std::make_shared<ScriptModule>(std::move(module));
}

}  // namespace lockstep::checkpoint
