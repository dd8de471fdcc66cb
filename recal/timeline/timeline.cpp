#include "recal/timeline/timeline.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/digest.h"
#include "recal/timeline/timeline_builder.h"

namespace lockstep::recal {
// Look-up of a compiled recipe. All queries are pure functions of the step: nothing is stored
// between steps, so a resumed run gets the same answers. file_actions() copies actions into one
// sorted list per kind of query.
namespace {

struct StepOrder {
  bool operator()(const Action& action, int64_t step) const { return action.step < step; }
  bool operator()(int64_t step, const Action& action) const { return step < action.step; }
};

/// Returns the last action at or before the step; null if none. Requires order by step.
const Action* last_until(const std::vector<Action>& actions, int64_t step) {
  const auto next = std::upper_bound(actions.begin(), actions.end(), step, StepOrder());
  return next == actions.begin() ? nullptr : &*std::prev(next);
}

}  // namespace

Timeline Timeline::compile(const Recipe& recipe, const TimelineInputs& inputs,
                           Diagnostics* faults) {
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
    // The names are part of the canonical text: a run that starts with other parameters differs.
    frozen_names_ += (i == 0 ? "" : " ") + (*inputs.params)[param].name;
  }
  prunes_.resize(modifiers_.size());
  values_.resize(modifiers_.size());
  // Two modifiers may prune one after another. The earlier one's last actions must come before the
  // later one's first, whatever their order in the recipe is.
  const auto begins = [&](const Action& action) {
    const bool is_on_masks = traits_of(action.kind).order == traits_of(ActionKind::kPrune).order;
    return is_on_masks ? modifiers_[static_cast<size_t>(action.modifier)].start_step.value_or(0)
                       : 0;
  };
  const auto key = [&](const Action& action) {
    // Within one modifier a mask is updated before it is released.
    return std::tuple(action.step, traits_of(action.kind).order, begins(action), action.modifier,
                      action.kind == ActionKind::kRelease);
  };
  std::stable_sort(actions_.begin(), actions_.end(),
                   [&](const Action& a, const Action& b) { return key(a) < key(b); });
  for (const Action& action : actions_) file(action);
  file_params(inputs);
  file_pruned_shares(inputs);
}

/// Collects the parameters of each modifier from its actions.
void Timeline::file_params(const TimelineInputs& inputs) {
  params_of_.resize(modifiers_.size());
  if (!inputs.params) return;
  std::vector<std::set<int>> seen(modifiers_.size());  // a modifier's actions share few sets
  for (const Action& action : actions_) {
    const auto modifier = static_cast<size_t>(action.modifier);
    if (action.param_set < 0 || !seen[modifier].insert(action.param_set).second) continue;
    const ParamSet& set = param_sets_[static_cast<size_t>(action.param_set)];
    params_of_[modifier].insert(params_of_[modifier].end(), set.params.begin(), set.params.end());
  }
  for (std::vector<int64_t>& params : params_of_) {
    std::sort(params.begin(), params.end());
    params.erase(std::unique(params.begin(), params.end()), params.end());
  }
}

/// Groups parameters by the modifiers that prune them, for the overall target sparsity.
void Timeline::file_pruned_shares(const TimelineInputs& inputs) {
  std::map<std::string, std::vector<int>> modifiers_by_name;  // of a parameter, or as written
  std::map<std::string, double> sizes;
  for (size_t m = 0; m < modifiers_.size(); ++m) {
    if (prunes_[m].empty()) continue;
    if (!inputs.params) {
      const ParamSet& set = param_sets_[static_cast<size_t>(prunes_[m].front().param_set)];
      modifiers_by_name[set.names.front()].push_back(static_cast<int>(m));
      sizes[set.names.front()] = 1;
    }
    for (const int64_t param : params_of_[m]) {
      const ParamInfo& info = (*inputs.params)[static_cast<size_t>(param)];
      modifiers_by_name[info.name].push_back(static_cast<int>(m));
      sizes[info.name] = static_cast<double>(std::max<int64_t>(info.num_weights, 1));
    }
  }
  // Parameters pruned by the same modifiers always have the same target: one entry serves them all.
  std::map<std::vector<int>, double> shares;
  for (const auto& [name, modifiers] : modifiers_by_name) shares[modifiers] += sizes[name];
  for (const auto& [modifiers, num_weights] : shares)
    pruned_shares_.push_back({modifiers, num_weights});
}

/// Enters one action in the look-up lists and in its modifier's entry.
void Timeline::file(const Action& action) {
  ModifierEntry& entry = modifiers_[static_cast<size_t>(action.modifier)];
  entry.works_on_masks = entry.works_on_masks || action.kind == ActionKind::kPrune ||
                         action.kind == ActionKind::kKeepZeros;
  if (action.kind == ActionKind::kQuantize && !entry.quantizes_from)
    entry.quantizes_from = action.step;
  entry.sets_trainable = entry.sets_trainable || action.kind == ActionKind::kSetTrainable;
  entry.sets_values = entry.sets_values || traits_of(action.kind).is_on_values;
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
    case ActionKind::kSetParam:
      return values_[static_cast<size_t>(action.modifier)].push_back(action);
    case ActionKind::kKeepZeros:
    case ActionKind::kRelease:
    case ActionKind::kTransform:
      return;
  }
}

Timeline::Range Timeline::due_at(int64_t step) const {
  const auto [first, last] = std::equal_range(actions_.begin(), actions_.end(), step, StepOrder());
  return {actions_.data() + (first - actions_.begin()),
          actions_.data() + (last - actions_.begin())};
}

const Action* Timeline::learning_rate_setter(int64_t step, int group) const {
  return last_until(learning_rates_.at(static_cast<size_t>(group)), step);
}

const Action* Timeline::weight_decay_setter(int64_t step, int group) const {
  return last_until(weight_decays_.at(static_cast<size_t>(group)), step);
}

double Timeline::learning_rate_at(int64_t step, int group) const {
  const Action* action = learning_rate_setter(step, group);
  // Before any modifier the optimizer's own rate holds.
  if (action == nullptr) return base_learning_rate_;
  return action->formula < 0 ? action->value
                             : rate_formulas_[static_cast<size_t>(action->formula)].at(step);
}

std::optional<double> Timeline::weight_decay_at(int64_t step, int group) const {
  const Action* action = weight_decay_setter(step, group);
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
  // Replays all changes up to the step, so that a resumed run gets the same result.
  bool observers_frozen = false;
  for (const Action& action : quantizes_) {
    if (action.step > step) break;
    // Freezing actions only exist after a quantizing one of the same modifier.
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
  for (const PrunedShare& share : pruned_shares_) {
    const Action* latest = nullptr;
    for (const int modifier : share.modifiers) {
      const Action* action = last_until(prunes_[static_cast<size_t>(modifier)], step);
      if (action != nullptr && (latest == nullptr || action->step >= latest->step)) latest = action;
    }
    sum += latest == nullptr ? 0 : latest->value * share.num_weights;
    weight_sum += share.num_weights;
  }
  return weight_sum > 0 ? sum / weight_sum : 0;
}

std::optional<double> Timeline::param_value_at(int64_t step, int modifier) const {
  const Action* action = last_until(values_[static_cast<size_t>(modifier)], step);
  return action == nullptr ? std::nullopt : std::optional<double>(action->value);
}

bool Timeline::logs_param(int64_t param) const {
  const auto at = static_cast<size_t>(param);
  return at < logged_.size() && logged_[at];
}

std::string Timeline::digest() const { return sha256_hex(canonical_text()); }

}  // namespace lockstep::recal
