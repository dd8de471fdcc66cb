#include "recal/timeline.h"

#include <algorithm>
#include <array>
#include <tuple>

#include "base/digest.h"
#include "recal/timeline_builder.h"

namespace lockstep::recal {
namespace {

struct StepOrder {
  bool operator()(const Action& action, int64_t step) const { return action.step < step; }
  bool operator()(int64_t step, const Action& action) const { return step < action.step; }
};

/// The last action at or before the step; null if there is none. Sorted by step.
const Action* last_until(const std::vector<Action>& actions, int64_t step) {
  const auto next = std::upper_bound(actions.begin(), actions.end(), step, StepOrder());
  return next == actions.begin() ? nullptr : &*std::prev(next);
}

/// In which order actions of one step act: values before the masks that are computed from them, a
/// release before the mask that takes over.
int order_of(ActionKind kind) {
  constexpr std::array kOrder = {ActionKind::kSetLearningRate, ActionKind::kSetWeightDecay,
                                 ActionKind::kSetParam,        ActionKind::kPrune,
                                 ActionKind::kRelease,         ActionKind::kKeepZeros,
                                 ActionKind::kSetTrainable,    ActionKind::kQuantize,
                                 ActionKind::kFreezeObservers, ActionKind::kFreezeBatchNorm};
  return static_cast<int>(std::find(kOrder.begin(), kOrder.end(), kind) - kOrder.begin());
}

}  // namespace

std::string_view name_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::kSetLearningRate:
      return "learning_rate";
    case ActionKind::kSetWeightDecay:
      return "weight_decay";
    case ActionKind::kPrune:
      return "prune";
    case ActionKind::kKeepZeros:
      return "keep_zeros";
    case ActionKind::kRelease:
      return "release";
    case ActionKind::kSetTrainable:
      return "trainable";
    case ActionKind::kSetParam:
      return "set_param";
    case ActionKind::kQuantize:
      return "quantize";
    case ActionKind::kFreezeObservers:
      return "freeze_observers";
    case ActionKind::kFreezeBatchNorm:
      return "freeze_batch_norm";
  }
  return "";
}

std::string of_group(int group) {
  return group == kAllGroups ? "" : " of parameter group " + std::to_string(group);
}

Timeline Timeline::compile(const Recipe& recipe, const TimelineInputs& inputs, Faults* faults) {
  return TimelineBuilder(recipe, inputs, faults).build();
}

void Timeline::file_actions(const TimelineInputs& inputs) {
  if (inputs.params) layer_of_weight_.assign(inputs.params->size(), -1);
  for (size_t i = 0; inputs.params && i < inputs.layers.size(); ++i)
    layer_of_weight_[static_cast<size_t>(inputs.layers[i].weight_param)] = static_cast<int64_t>(i);
  trainable_at_start_.assign(layer_of_weight_.size(), true);
  for (size_t i = 0; inputs.params && i < inputs.frozen_at_start.size(); ++i) {
    const auto param = static_cast<size_t>(inputs.frozen_at_start[i]);
    trainable_at_start_[param] = false;
    frozen_names_ += (i == 0 ? "" : " ") + (*inputs.params)[param].name;
  }
  prunes_.resize(modifiers_.size());
  std::stable_sort(actions_.begin(), actions_.end(), [](const Action& a, const Action& b) {
    return std::tuple(a.step, order_of(a.kind), a.modifier) <
           std::tuple(b.step, order_of(b.kind), b.modifier);
  });
  for (const Action& action : actions_) file(action);
}

void Timeline::file(const Action& action) {
  const auto each_group = [&](std::array<std::vector<Action>, kNumParamGroups>* groups) {
    for (int group = 0; group < kNumParamGroups; ++group)
      if (action.group == kAllGroups || action.group == group)
        (*groups)[static_cast<size_t>(group)].push_back(action);
  };
  switch (action.kind) {
    case ActionKind::kSetLearningRate:
      return each_group(&learning_rates_);
    case ActionKind::kSetWeightDecay:
      return each_group(&weight_decays_);
    case ActionKind::kPrune:
      return prunes_[static_cast<size_t>(action.modifier)].push_back(action);
    case ActionKind::kSetTrainable:
      return trainables_.push_back(action);
    case ActionKind::kQuantize:
    case ActionKind::kFreezeObservers:
    case ActionKind::kFreezeBatchNorm:
      return quantizes_.push_back(action);
    case ActionKind::kKeepZeros:
    case ActionKind::kRelease:
    case ActionKind::kSetParam:
      return;
  }
}

Timeline::Range Timeline::due_at(int64_t step) const {
  const auto [first, last] = std::equal_range(actions_.begin(), actions_.end(), step, StepOrder());
  return {actions_.data() + (first - actions_.begin()),
          actions_.data() + (last - actions_.begin())};
}

double Timeline::learning_rate_at(int64_t step, int group) const {
  const Action* action = last_until(learning_rates_.at(static_cast<size_t>(group)), step);
  if (action == nullptr) return base_learning_rate_;
  return action->formula < 0 ? action->value
                             : rate_formulas_[static_cast<size_t>(action->formula)].at(step);
}

std::optional<double> Timeline::weight_decay_at(int64_t step, int group) const {
  const Action* action = last_until(weight_decays_.at(static_cast<size_t>(group)), step);
  return action == nullptr ? std::nullopt : std::optional<double>(action->value);
}

bool Timeline::sets_learning_rate() const {
  return std::any_of(learning_rates_.begin(), learning_rates_.end(),
                     [](const std::vector<Action>& rates) { return !rates.empty(); });
}

std::vector<bool> Timeline::trainable_at(int64_t step) const {
  std::vector<bool> trainable = trainable_at_start_;
  for (const Action& action : trainables_) {
    if (action.step > step) break;
    for (const int64_t param : param_sets_[static_cast<size_t>(action.param_set)].params)
      trainable[static_cast<size_t>(param)] = action.value != 0;
  }
  return trainable;
}

Quantization Timeline::quantization_at(int64_t step) const {
  Quantization now{.per_channel = quantizes_per_channel_};
  bool observers_frozen = false;
  for (const Action& action : quantizes_) {
    if (action.step > step) break;
    now.on = true;
    if (action.kind == ActionKind::kFreezeObservers) observers_frozen = true;
    if (action.kind == ActionKind::kFreezeBatchNorm) now.batch_norm_frozen = true;
    if (action.kind != ActionKind::kQuantize) continue;
    for (const int64_t param : param_sets_[static_cast<size_t>(action.param_set)].params)
      now.layers.push_back(layer_of_weight_[static_cast<size_t>(param)]);
  }
  now.observers_on = now.on && !observers_frozen;
  std::sort(now.layers.begin(), now.layers.end());
  return now;
}

std::optional<double> Timeline::target_sparsity_at(int64_t step, int modifier) const {
  const std::vector<Action>& prunes = prunes_[static_cast<size_t>(modifier)];
  if (prunes.empty()) return std::nullopt;
  const Action* action = last_until(prunes, step);
  return action == nullptr ? 0 : action->value;
}

double Timeline::target_sparsity_at(int64_t step) const {
  double sum = 0;
  double weight_sum = 0;
  for (size_t m = 0; m < prunes_.size(); ++m) {
    const std::optional<double> target = target_sparsity_at(step, static_cast<int>(m));
    if (!target) continue;
    const int64_t num_weights =
        param_sets_[static_cast<size_t>(prunes_[m].front().param_set)].num_weights;
    const double weight = num_weights > 0 ? static_cast<double>(num_weights) : 1.0;
    sum += *target * weight;
    weight_sum += weight;
  }
  return weight_sum > 0 ? sum / weight_sum : 0;
}

bool Timeline::logs_param(int64_t param) const {
  const auto at = static_cast<size_t>(param);
  return at < logged_.size() && logged_[at];
}

std::string Timeline::digest() const { return sha256_hex(canonical_text()); }

}  // namespace lockstep::recal
