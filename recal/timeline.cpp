#include "recal/timeline.h"

#include <algorithm>

#include <fmt/format.h>

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

}  // namespace

std::string_view name_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::kSetLearningRate:
      return "learning_rate";
    case ActionKind::kPrune:
      return "prune";
    case ActionKind::kKeepZeros:
      return "keep_zeros";
    case ActionKind::kRelease:
      return "release";
  }
  return "";
}

Timeline Timeline::compile(const Recipe& recipe, const TimelineInputs& inputs, Faults* faults) {
  return TimelineBuilder(recipe, inputs, faults).build();
}

Timeline::Range Timeline::due_at(int64_t step) const {
  const auto [first, last] = std::equal_range(actions_.begin(), actions_.end(), step, StepOrder());
  return {actions_.data() + (first - actions_.begin()),
          actions_.data() + (last - actions_.begin())};
}

double Timeline::learning_rate_at(int64_t step) const {
  const Action* action = last_until(learning_rates_, step);
  return action == nullptr ? base_learning_rate_ : action->value;
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

std::string Timeline::canonical_text() const {
  std::string out = fmt::format(
      "lockstep timeline 1\nsteps_per_epoch {}\nbase_learning_rate {}\ntotal_steps {}\n",
      steps_per_epoch_, base_learning_rate_, total_steps_.value_or(-1));
  for (size_t i = 0; i < param_sets_.size(); ++i)
    out += fmt::format("params {}: {}\n", i, fmt::join(param_sets_[i].names, " "));
  for (const Action& action : actions_)
    out += fmt::format("step {} {} {} params {}\n", action.step, name_of(action.kind), action.value,
                       action.param_set);
  return out;
}

std::string Timeline::digest() const { return sha256_hex(canonical_text()); }

}  // namespace lockstep::recal
