#include "recal/schedule/timeline.h"

#include <algorithm>
#include <map>
#include <numbers>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "base/digest.h"
#include "base/error.h"
#include "recal/schedule/timeline_builder.h"

// Timeline of a recipe: its actions, rates, look-up, and warnings about it.
namespace lockstep::recal {
namespace {

constexpr std::array kTraits = {
    ActionTraits{.kind = ActionKind::kSetLearningRate, .name = "learning_rate", .order = 0},
    ActionTraits{.kind = ActionKind::kSetWeightDecay, .name = "weight_decay", .order = 1},
    ActionTraits{
        .kind = ActionKind::kSetParam, .name = "set_param", .order = 2, .is_on_values = true},
    ActionTraits{
        .kind = ActionKind::kTransform, .name = "transform", .order = 3, .is_on_values = true},
    ActionTraits{.kind = ActionKind::kPrune, .name = "prune", .order = 4, .is_on_masks = true},
    // Same order as prune: Timeline::file_actions() orders the two by modifier.
    ActionTraits{.kind = ActionKind::kRelease, .name = "release", .order = 4, .is_on_masks = true},
    ActionTraits{
        .kind = ActionKind::kKeepZeros, .name = "keep_zeros", .order = 5, .is_on_masks = true},
    ActionTraits{.kind = ActionKind::kSetTrainable, .name = "trainable", .order = 6},
    ActionTraits{
        .kind = ActionKind::kQuantize, .name = "quantize", .order = 7, .is_on_quantization = true},
    ActionTraits{.kind = ActionKind::kFreezeObservers,
                 .name = "freeze_observers",
                 .order = 8,
                 .is_on_quantization = true},
    ActionTraits{.kind = ActionKind::kFreezeBatchNorm,
                 .name = "freeze_batch_norm",
                 .order = 9,
                 .is_on_quantization = true},
    // One modifier may end at the step at which another starts, so the end comes first.
    ActionTraits{.kind = ActionKind::kStopDistilling, .name = "stop_distilling", .order = 10},
    ActionTraits{.kind = ActionKind::kSetTemperature, .name = "temperature", .order = 11},
    ActionTraits{.kind = ActionKind::kDistill, .name = "distil", .order = 12},
};

constexpr int kSeriesTerms = 10;  // the next term is below 2^-60 at pi / 4

/// Taylor series in Horner form, innermost term first: 1 - x^2 / (n + 1) / (n + 2) * (1 - x^2 / (n
/// + 3) / (n + 4) * ...). Cosine for n = 0; sine divided by x for n = 1.
double series(double x, int n) {
  double sum = 1;
  for (int i = n + 2 * kSeriesTerms; i > n; i -= 2) sum = 1 - x * x / (i * (i - 1)) * sum;
  return sum;
}

// Look-up of a compiled recipe. All queries are pure functions of the step: nothing is stored
// between steps, so a resumed run gets the same answers. file_actions() copies actions into one
// sorted list per kind of query.

struct StepOrder {
  bool operator()(const Action& action, int64_t step) const { return action.step < step; }
  bool operator()(int64_t step, const Action& action) const { return step < action.step; }
};

/// Returns the last action at or before the step; null if none. Requires order by step.
const Action* last_until(const std::vector<Action>& actions, int64_t step) {
  const auto next = std::upper_bound(actions.begin(), actions.end(), step, StepOrder());
  return next == actions.begin() ? nullptr : &*std::prev(next);
}

/// Tag of the modifier that only sets the length of training.
constexpr std::string_view kEpochRangeTag = "EpochRangeModifier";

std::vector<const Action*> actions_of(const Timeline& timeline, size_t modifier) {
  std::vector<const Action*> own;
  for (const Action& action : timeline.actions())
    if (action.modifier == static_cast<int>(modifier)) own.push_back(&action);
  return own;
}

/// Reason why a modifier does not do everything it says; "" if it does.
std::string idleness(const Timeline& timeline, size_t modifier, std::optional<int64_t> last_step) {
  const ModifierEntry& entry = timeline.modifiers()[modifier];
  const std::vector<const Action*> actions = actions_of(timeline, modifier);
  if (actions.empty()) return "never fires: its window is shorter than one step";
  // A run of unknown length may reach everything.
  if (!last_step) return "";
  if (!is_reached(*actions.front(), *last_step))
    return fmt::format("never fires: it starts at step {}, the run has {} steps",
                       actions.front()->step, *last_step);
  if (entry.end_step && *entry.end_step > *last_step)
    return fmt::format("never reaches its end: that is step {}, the run has {} steps",
                       *entry.end_step, *last_step);
  const bool freezes = actions.back()->kind == ActionKind::kFreezeObservers ||
                       actions.back()->kind == ActionKind::kFreezeBatchNorm;
  if (freezes && !is_reached(*actions.back(), *last_step))
    return fmt::format("never comes to {} at step {}, the run has {} steps",
                       traits_of(actions.back()->kind).name, actions.back()->step, *last_step);
  return "";
}

bool names_end(const ModifierEntry& entry) {
  return entry.end_step && entry.window.end && !entry.window.end->is_run_end();
}

/// Returns the modifier with this tag ("": any) and the largest named end; nullptr if none.
const ModifierEntry* last_to_end(const Timeline& timeline, std::string_view tag) {
  const ModifierEntry* last = nullptr;
  for (const ModifierEntry& entry : timeline.modifiers())
    if ((tag.empty() || entry.tag == tag) && names_end(entry) &&
        (last == nullptr || *entry.end_step > *last->end_step))
      last = &entry;
  return last;
}

bool starts_at_or_after(const ModifierEntry& entry, int64_t step) {
  return !entry.window.end && entry.start_step && *entry.start_step >= step;
}

}  // namespace

const ActionTraits& traits_of(ActionKind kind) {
  const auto row = std::find_if(kTraits.begin(), kTraits.end(),
                                [&](const ActionTraits& one) { return one.kind == kind; });
  check(row != kTraits.end(), "every kind of action has a row");
  return *row;
}

double cos_pi(double t) {
  // Symmetries reduce the argument to at most pi / 4, where the series converges fast.
  if (t > 0.5) return -cos_pi(1.0 - t);
  const double x = std::numbers::pi * (t <= 0.25 ? t : 0.5 - t);
  return t <= 0.25 ? series(x, 0) : x * series(x, 1);
}

double LrSchedule::fraction_at(int64_t step) const {
  const auto position = static_cast<double>(step);
  if (!cycles) return std::clamp((position - begin) / (end - begin), 0.0, 1.0);
  // The step is in cycle k, which begins at its exact position, not at a whole step.
  const int64_t k = cycles->last_until(step, steps_per_epoch);
  const double passed = position - cycles->position(k, steps_per_epoch);
  return std::clamp(passed / cycles->length(steps_per_epoch), 0.0, 1.0);
}

double LrSchedule::at(int64_t step) const {
  if (static_cast<double>(step) <= begin) return first;
  if (step >= last_step && !cycles) return last;
  // With cycles, the value after the window is that of its last step.
  const double t = fraction_at(std::min(step, last_step - 1));
  if (shape == Shape::kLinear) return first + (last - first) * t;
  return last + (first - last) * (1.0 + cos_pi(t)) / 2.0;
}

std::string LrSchedule::text() const {
  return fmt::format("{} from {} to {}{}", shape == Shape::kLinear ? "linear" : "cosine", first,
                     last, cycles ? ", again every " + cycles->period.text() : "");
}

std::string LrSchedule::canonical_text() const {
  // text() has all other values in their shortest exact form.
  std::string out = fmt::format("{} over {} to {} until {}", text(), begin, end, last_step);
  if (cycles)
    out += fmt::format(" cycles from {} epochs {} steps", cycles->start_epochs.text(),
                       cycles->start_steps);
  return out;
}

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
  if (action.kind == ActionKind::kSetLearningRate) each_group(&learning_rates_);
  if (action.kind == ActionKind::kSetWeightDecay) each_group(&weight_decays_);
  if (action.kind == ActionKind::kSetTrainable) trainables_.push_back(action);
  const auto modifier = static_cast<size_t>(action.modifier);
  if (action.kind == ActionKind::kPrune) prunes_[modifier].push_back(action);
  if (action.kind == ActionKind::kSetParam) values_[modifier].push_back(action);
  if (traits_of(action.kind).is_on_quantization) quantizes_.push_back(action);
  if (traits_of(action.kind).is_on_loss()) distils_.push_back(action);
}

std::span<const Action> Timeline::due_at(int64_t step) const {
  const auto [first, last] = std::equal_range(actions_.begin(), actions_.end(), step, StepOrder());
  return {first, last};
}

bool Timeline::has(ActionKind kind) const {
  return std::any_of(actions_.begin(), actions_.end(),
                     [kind](const Action& action) { return action.kind == kind; });
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

std::optional<Distillation> Timeline::distillation_at(int64_t step) const {
  std::optional<Distillation> now;
  double temperature = 1;
  for (const Action& action : distils_) {
    if (action.step > step) break;
    if (action.kind == ActionKind::kSetTemperature) temperature = action.value;
    if (action.kind == ActionKind::kStopDistilling) now.reset();
    if (action.kind == ActionKind::kDistill)
      now = Distillation{.hardness = action.value, .temperature = temperature};
  }
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

bool is_reached(const Action& action, int64_t last_step) {
  const ActionTraits& traits = traits_of(action.kind);
  const bool acts_at_closing = traits.is_on_masks || traits.is_on_values;
  return action.step < last_step || (action.step == last_step && acts_at_closing);
}

std::vector<std::string> widening_notes(const Timeline& timeline) {
  const ModifierEntry* range = last_to_end(timeline, kEpochRangeTag);
  const ModifierEntry* last = last_to_end(timeline, "");
  std::vector<std::string> notes;
  const auto note = [&](const ModifierEntry& entry, std::string_view what, const TrainTime& own,
                        const ModifierEntry& bound) {
    notes.push_back(fmt::format("{}: {} lengthens the run: it {} at {}, {} ends at {}", entry.place,
                                entry.tag, what, own.sentence_text(), bound.tag,
                                bound.window.end->text()));
  };
  for (const ModifierEntry& entry : timeline.modifiers()) {
    // Two ways to extend a run: a later end, or a start without an end.
    if (range && names_end(entry) && *entry.end_step > *range->end_step)
      note(entry, "ends", *entry.window.end, *range);
    if (last && starts_at_or_after(entry, *last->end_step) &&
        *timeline.total_steps() > *last->end_step)
      note(entry, "starts", *entry.window.start, *last);
  }
  return notes;
}

std::vector<std::string> idle_warnings(const Timeline& timeline, std::optional<int64_t> max_steps) {
  std::optional<int64_t> last_step = timeline.total_steps();
  if (max_steps) last_step = std::min(last_step.value_or(*max_steps), *max_steps);
  std::vector<std::string> warnings;
  for (size_t i = 0; i < timeline.modifiers().size(); ++i) {
    const ModifierEntry& entry = timeline.modifiers()[i];
    // It has no actions by design.
    if (entry.tag == kEpochRangeTag) continue;
    const std::string why = idleness(timeline, i, last_step);
    if (!why.empty()) warnings.push_back(fmt::format("{}: {}: {}", entry.place, entry.tag, why));
  }
  return warnings;
}

}  // namespace lockstep::recal
