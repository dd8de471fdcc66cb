#include "recal/timeline_builder.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"

namespace lockstep::recal {
namespace {

constexpr size_t kMaxUpdates = 1'000'000;

/// The last k' >= k that falls on the same step. Doubling, then halving: a period may be far
/// shorter than a step.
template <typename StepOf>
int64_t last_on_same_step(int64_t k, const StepOf& step_of) {
  const int64_t step = step_of(k);
  int64_t stride = 1;
  for (; step_of(k + stride) == step; stride *= 2) k += stride;
  for (; stride > 0; stride /= 2)
    if (step_of(k + stride) == step) k += stride;
  return k;
}

int64_t round_down(const Decimal& epoch) {
  const int64_t up = epoch.ceil_times(1);
  return Decimal(up) == epoch ? up : up - 1;
}

}  // namespace

TimelineBuilder::TimelineBuilder(const Recipe& recipe, const TimelineInputs& inputs, Faults* faults)
    : recipe_(recipe), inputs_(inputs), faults_(faults) {
  check(inputs.steps_per_epoch >= 1 && inputs.steps_per_epoch <= 1'000'000'000,
        "steps per epoch: 1 to 10^9");
}

Timeline TimelineBuilder::build() {
  timeline_.steps_per_epoch_ = inputs_.steps_per_epoch;
  timeline_.base_learning_rate_ = inputs_.base_learning_rate;
  contribute_all();
  sort_actions();
  set_bounds();
  note_widening();
  warn_of_idle_modifiers();
  return std::move(timeline_);
}

void TimelineBuilder::contribute_all() {
  const int num_modifiers = static_cast<int>(recipe_.modifiers().size());
  timeline_.prunes_.resize(recipe_.modifiers().size());
  for (current_ = 0; current_ < num_modifiers; ++current_) {
    const Modifier& now = modifier(current_);
    const Window window = now.window();
    const auto step_or_none = [&](const std::optional<Decimal>& epoch) {
      return epoch ? std::optional<int64_t>(step_of(*epoch)) : std::nullopt;
    };
    timeline_.modifiers_.push_back({std::string(now.tag()), now.summary(), now.place().text(),
                                    window, step_or_none(window.start), step_or_none(window.end)});
    now.contribute(this);
  }
}

void TimelineBuilder::sort_actions() {
  std::stable_sort(timeline_.actions_.begin(), timeline_.actions_.end(),
                   [](const Action& a, const Action& b) { return a.step < b.step; });
  for (const Action& action : timeline_.actions_) {
    if (action.kind == ActionKind::kSetLearningRate) timeline_.learning_rates_.push_back(action);
    if (action.kind == ActionKind::kPrune)
      timeline_.prunes_[static_cast<size_t>(action.modifier)].push_back(action);
  }
}

void TimelineBuilder::set_bounds() {
  std::optional<Decimal> first, last;
  for (const ModifierEntry& entry : timeline_.modifiers_) {
    const auto& [start, end] = entry.window;
    if (start && (!first || *start < *first)) first = start;
    if (end && (!last || *end > *last)) last = end;
  }
  if (first) timeline_.min_epochs_ = round_down(*first);
  if (!last) return;
  timeline_.max_epochs_ = last->ceil_times(1);
  timeline_.total_steps_ = step_of(*last);
}

void TimelineBuilder::note_widening() {
  std::optional<Window> range;
  for (const ModifierEntry& entry : timeline_.modifiers_)
    if (entry.tag == "EpochRangeModifier" && (!range || *entry.window.end > *range->end))
      range = entry.window;
  if (!range) return;
  for (const ModifierEntry& entry : timeline_.modifiers_) {
    const auto& [start, end] = entry.window;
    if (end && *end > *range->end)
      timeline_.notes_.push_back(
          fmt::format("{}: {} widens the run: it ends at epoch {}, EpochRangeModifier at {}",
                      entry.place, entry.tag, end->text(), range->end->text()));
    if (start && *start < *range->start)
      timeline_.notes_.push_back(
          fmt::format("{}: {} widens the run: it starts at epoch {}, EpochRangeModifier at {}",
                      entry.place, entry.tag, start->text(), range->start->text()));
  }
}

void TimelineBuilder::warn_of_idle_modifiers() {
  // An action at the run's last bound still happens, in finalize.
  std::optional<int64_t> last_step = timeline_.total_steps_;
  if (inputs_.max_steps && (!last_step || *inputs_.max_steps < *last_step))
    last_step = inputs_.max_steps;
  for (current_ = 0; current_ < static_cast<int>(timeline_.modifiers_.size()); ++current_) {
    const ModifierEntry& entry = timeline_.modifiers_[static_cast<size_t>(current_)];
    if (entry.tag == "EpochRangeModifier") continue;
    const auto is_ours = [&](const Action& action) { return action.modifier == current_; };
    const auto first = std::find_if(timeline_.actions_.begin(), timeline_.actions_.end(), is_ours);
    if (first == timeline_.actions_.end()) {
      warn("never fires: its window is shorter than one step");
    } else if (last_step &&
               (first->kind == ActionKind::kSetLearningRate ? first->step >= *last_step
                                                            : first->step > *last_step)) {
      warn(fmt::format("never fires: it starts at step {}, the run has {} steps", first->step,
                       *last_step));
    } else if (last_step && entry.end_step && *entry.end_step > *last_step) {
      warn(fmt::format("never reaches its end: that is step {}, the run has {} steps",
                       *entry.end_step, *last_step));
    }
  }
}

std::vector<PeriodicUpdate> TimelineBuilder::updates(const Decimal& start, const Decimal& period,
                                                     const Decimal& end) {
  const auto step_of_update = [&](int64_t k) {
    return start.ceil_times(k, period, inputs_.steps_per_epoch);
  };
  const int64_t end_step = step_of(end);
  std::vector<PeriodicUpdate> found;
  for (int64_t k = 0; step_of_update(k) < end_step; ++k) {
    k = last_on_same_step(k, step_of_update);
    found.push_back({k, step_of_update(k)});
    if (found.size() <= kMaxUpdates) continue;
    const Modifier& now = modifier(current_);
    faults_->add(now.place().fault(
        fmt::format("{} has more than {} updates: lengthen its period", now.tag(), kMaxUpdates)));
    return {};
  }
  return found;
}

void TimelineBuilder::claim_learning_rate(int64_t first_step, int64_t last_step) {
  for (const RateClaim& claim : rate_claims_) {
    const int64_t clash = std::max(first_step, claim.first_step);
    if (clash >= std::min(last_step, claim.last_step)) continue;
    const Modifier& now = modifier(current_);
    const Modifier& other = modifier(claim.modifier);
    faults_->add(now.place().fault(fmt::format(
        "{} and {} ({}) both write the learning rate at step {} (epoch {:.6g})", now.tag(),
        other.tag(), other.place().text(), clash, timeline_.epoch_of(clash))));
  }
  rate_claims_.push_back({current_, first_step, last_step});
}

std::vector<int64_t> TimelineBuilder::resolve(const ParamSelector& selector) {
  if (!inputs_.params) return {};
  const std::vector<int64_t> params = selector.resolve_prunable(*inputs_.params, faults_);
  if (params.empty() && selector.text() == "__ALL__")
    faults_->add(modifier(current_).place().fault(
        "the model has nothing to prune: no weight of a linear or convolution layer"));
  return params;
}

int TimelineBuilder::add_param_set(const std::vector<int64_t>& params,
                                   const ParamSelector& selector) {
  ParamSet set;
  set.params = params;
  for (const int64_t index : params) {
    const ParamInfo& info = (*inputs_.params)[static_cast<size_t>(index)];
    set.names.push_back(info.name);
    set.num_weights += info.num_weights;
  }
  if (!inputs_.params) set.names.push_back(selector.text());
  timeline_.param_sets_.push_back(std::move(set));
  return static_cast<int>(timeline_.param_sets_.size()) - 1;
}

void TimelineBuilder::refuse_second_pruner(int64_t param, const PruningClaim& first) {
  const Modifier& now = modifier(current_);
  const Modifier& other = modifier(first.modifier);
  const std::string hint = now.tag() == "GradualKSModifier" && !first.gradual
                               ? "; list the ConstantKSModifier behind it to keep what it leaves"
                               : "";
  faults_->add(now.place().fault(
      fmt::format("{} and {} ({}) both prune '{}'{}", now.tag(), other.tag(), other.place().text(),
                  (*inputs_.params)[static_cast<size_t>(param)].name, hint)));
}

int TimelineBuilder::claim_gradual_pruning(const ParamSelector& selector, int64_t end_step) {
  const std::vector<int64_t> params = resolve(selector);
  for (const int64_t param : params) {
    const auto [claim, is_first] =
        pruning_claims_.try_emplace(param, PruningClaim{current_, true, end_step});
    if (is_first) continue;
    refuse_second_pruner(param, claim->second);
    break;  // one fault says it for all its parameters
  }
  return add_param_set(params, selector);
}

std::vector<std::pair<int64_t, int>> TimelineBuilder::claim_constant_pruning(
    const ParamSelector& selector) {
  std::map<int64_t, std::vector<int64_t>> params_by_step;
  if (!inputs_.params) params_by_step[0] = {};
  for (const int64_t param : resolve(selector)) {
    const auto claim = pruning_claims_.find(param);
    if (claim != pruning_claims_.end() && !claim->second.gradual) {
      refuse_second_pruner(param, claim->second);
      break;
    }
    params_by_step[claim == pruning_claims_.end() ? 0 : claim->second.end_step].push_back(param);
    pruning_claims_[param] = {current_, false, 0};
  }
  std::vector<std::pair<int64_t, int>> sets;
  for (const auto& [step, params] : params_by_step)
    sets.emplace_back(step, add_param_set(params, selector));
  return sets;
}

void TimelineBuilder::add(int64_t step, ActionKind kind, double value, int param_set) {
  timeline_.actions_.push_back({step, kind, value, current_, param_set});
}

void TimelineBuilder::warn(const std::string& message) {
  const Modifier& now = modifier(current_);
  timeline_.warnings_.push_back(fmt::format("{}: {}: {}", now.place().text(), now.tag(), message));
}

}  // namespace lockstep::recal
