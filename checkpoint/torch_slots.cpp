#include "checkpoint/torch_slots.h"

#include <ATen/ops/zeros_like.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "base/error.h"

namespace lockstep::checkpoint {
namespace {

using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

void add(std::string name, const at::Tensor& slot, StateList* list) {
  if (slot.defined()) list->push_back({.key = std::move(name), .tensor = slot});
}

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
                                             const OptimizerOptions& options) const override {
    if (static_cast<const torch::optim::SGDOptions&>(options).momentum() == 0) return nullptr;
    auto state = std::make_unique<torch::optim::SGDParamState>();
    state->momentum_buffer(zeros(param));
    return state;
  }
};

/// Adam and AdamW, whose types are alike but not related.
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
                                             const OptimizerOptions& options) const override {
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

  std::unique_ptr<OptimizerParamState> fresh(const at::Tensor& param,
                                             const OptimizerOptions& base) const override {
    const auto& options = static_cast<const torch::optim::RMSpropOptions&>(base);
    auto state = std::make_unique<torch::optim::RMSpropParamState>();
    state->step(0);
    state->square_avg(zeros(param));
    if (options.momentum() > 0) state->momentum_buffer(zeros(param));
    if (options.centered()) state->grad_avg(zeros(param));
    return state;
  }
};

/// Its slots exist from the start.
class AdagradSlots final : public TorchSlots {
 public:
  StateList list(OptimizerParamState& base) const override {
    auto& state = static_cast<torch::optim::AdagradParamState&>(base);
    StateList slots;
    add("step", view_of(&state.step()), &slots);
    add("sum", state.sum(), &slots);
    return slots;
  }

  std::unique_ptr<OptimizerParamState> fresh(const at::Tensor&,
                                             const OptimizerOptions&) const override {
    return nullptr;
  }
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
  throw Error(ExitCode::kConfig, "checkpoint",
              "this optimizer's state is not known: SGD, Adam, AdamW, RMSprop and Adagrad are; for "
              "another, pass an object that lists its state (checkpoint/trackable.h)");
}

}  // namespace lockstep::checkpoint
