#include "recal/timeline/timeline_builder.h"

#include <algorithm>

#include <fmt/format.h>

#include "recal/timeline/schedule_warnings.h"

namespace lockstep::recal {
// build() compiles each modifier in recipe order. A modifier converts its moments to steps, claims
// what it changes (conflicts become faults), and adds actions. Timeline::file_actions() sorts them.
namespace {

std::vector<std::string> names_of(const TimelineInputs& inputs) {
  std::vector<std::string> names;
  if (inputs.params)
    for (const ParamInfo& info : *inputs.params) names.push_back(info.name);
  return names;
}

std::vector<Window> windows_of(const Recipe& recipe) {
  std::vector<Window> windows;
  for (const auto& modifier : recipe.modifiers()) windows.push_back(modifier->window());
  return windows;
}

}  // namespace

TimelineBuilder::TimelineBuilder(const Recipe& recipe, const TimelineInputs& inputs,
                                 Diagnostics* faults)
    : recipe_(recipe),
      inputs_(inputs),
      faults_(faults),
      converter_(windows_of(recipe), inputs.steps_per_epoch, inputs.max_steps),
      rates_("the learning rate", inputs.steps_per_epoch),
      decays_("the weight decay", inputs.steps_per_epoch),
      trainable_(names_of(inputs), inputs.frozen_at_start),
      quantization_(inputs.layers) {}

Timeline TimelineBuilder::build() {
  timeline_.steps_per_epoch_ = inputs_.steps_per_epoch;
  timeline_.base_learning_rate_ = inputs_.base_learning_rate;
  timeline_.total_steps_ = converter_.total_steps();
  timeline_.min_epochs_ = converter_.min_epochs();
  timeline_.max_epochs_ = converter_.max_epochs();
  timeline_.notes_ = recipe_.notes();
  // Order: deferred parts see all rates, trainability needs all claims, quantization needs all
  // masks.
  compile_all();
  compile_deferred();
  add_trainable_changes();
  check_quantization();
  timeline_.file_actions(inputs_);
  const std::vector<std::string> widening = widening_notes(timeline_);
  timeline_.notes_.insert(timeline_.notes_.end(), widening.begin(), widening.end());
  if (inputs_.params && !inputs_.frozen_at_start.empty())
    timeline_.notes_.push_back(fmt::format("{} of {} parameters are frozen from the start",
                                           inputs_.frozen_at_start.size(), inputs_.params->size()));
  const std::vector<std::string> idle = idle_warnings(timeline_, inputs_.max_steps);
  timeline_.warnings_.insert(timeline_.warnings_.end(), idle.begin(), idle.end());
  return std::move(timeline_);
}

void TimelineBuilder::compile_all() {
  const int num_modifiers = static_cast<int>(recipe_.modifiers().size());
  for (current_ = 0; current_ < num_modifiers; ++current_) {
    const bool is_known = converter_.knows(now().window());
    if (!is_known)
      fault(
          fmt::format("{} lasts to the run's end (-1), and nothing says where that is: add an "
                      "!EpochRangeModifier, or train.max_steps to the run file",
                      now().tag()));
    // Entries are added for faulty modifiers too: actions refer to modifiers by index.
    describe_current();
    if (is_known) now().compile(this);
  }
}

void TimelineBuilder::compile_deferred() {
  std::stable_sort(deferred_.begin(), deferred_.end(),
                   [](const Deferred& a, const Deferred& b) { return a.step < b.step; });
  for (const Deferred& deferred : deferred_) {
    current_ = deferred.modifier;
    deferred.compile();
  }
}

void TimelineBuilder::defer(int64_t step, std::function<void()> compile) {
  deferred_.push_back({step, current_, std::move(compile)});
}

/// Rate of a group just before `step`, from the actions added so far.
double TimelineBuilder::rate_in_force(int64_t step, int group) const {
  const Action* latest = nullptr;
  for (const Action& action : timeline_.actions_) {
    if (action.kind != ActionKind::kSetLearningRate || action.step >= step) continue;
    if (action.group != kAllGroups && action.group != group) continue;
    // A strict comparison: of actions at one step the first counts, but one step has one writer.
    if (latest == nullptr || action.step > latest->step) latest = &action;
  }
  if (latest == nullptr) return inputs_.base_learning_rate;
  if (latest->formula < 0) return latest->value;
  return timeline_.rate_formulas_[static_cast<size_t>(latest->formula)].at(step);
}

std::vector<std::pair<ParamGroups, double>> TimelineBuilder::rates_in_force(
    int64_t step, const ParamGroups& groups) const {
  std::vector<int> numbers = groups.numbers;
  for (int group = 0; groups.all() && group < kNumParamGroups; ++group) numbers.push_back(group);
  std::vector<std::pair<ParamGroups, double>> rates;
  for (const int group : numbers) rates.push_back({{{group}}, rate_in_force(step, group)});
  const double first = rates.front().second;
  if (std::all_of(rates.begin(), rates.end(), [&](const auto& r) { return r.second == first; }))
    return {{groups, first}};
  return rates;
}

/// Adds the entry of the current modifier. Steps stay unknown if the run's end is unknown.
void TimelineBuilder::describe_current() {
  const Window window = now().window();
  const auto step_or_none = [&](const std::optional<TrainTime>& moment) {
    return moment && converter_.knows(window) ? std::optional<int64_t>(step_of(*moment))
                                              : std::nullopt;
  };
  timeline_.modifiers_.push_back({.tag = now().tag(),
                                  .summary = now().summary(),
                                  .place = now().location().text(),
                                  .window = window,
                                  .start_step = step_or_none(window.start),
                                  .end_step = step_or_none(window.end),
                                  .param_logs = now().param_logs()});
}

/// Index of a modifier in the recipe; actions refer to modifiers by index.
int TimelineBuilder::index_of(const Modifier* wanted) const {
  const auto& all = recipe_.modifiers();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& each) { return each.get() == wanted; });
  return static_cast<int>(found - all.begin());
}

void TimelineBuilder::add_trainable_changes() {
  for (const TrainableChange& change : trainable_.changes(faults_)) {
    // add() uses the current modifier, and each change has its own.
    current_ = index_of(change.modifier);
    add(change.step, ActionKind::kSetTrainable, change.trainable ? 1 : 0,
        add_param_set(change.params, ""));
  }
}

void TimelineBuilder::check_quantization() {
  for (const auto& [modifier, text] :
       quantization_.check_pruning(pruning_, converter_.total_steps(), faults_)) {
    current_ = index_of(modifier);
    warn(text);
  }
  timeline_.quantizes_per_channel_ = quantization_.per_channel();
}

std::optional<StepRange> TimelineBuilder::steps_of(const Window& window) {
  const StepRange steps{step_of(*window.start), step_of(*window.end)};
  if (steps.first < steps.end) return steps;
  // Equal steps in one unit: the window is shorter than a step, which is only worth a warning.
  if (steps.first == steps.end && window.start->kind == window.end->kind) return steps;
  fault(fmt::format("{} ends at {} (step {}), which is not after its start at {} (step {})",
                    now().tag(), window.end->sentence_text(), steps.end,
                    window.start->sentence_text(), steps.first));
  return std::nullopt;
}

std::vector<PeriodicUpdate> TimelineBuilder::updates(const Window& window, const Period& period,
                                                     int64_t end_step) {
  // The limit is for all modifiers together: a recipe must not exhaust memory.
  const size_t at_most = StepConverter::kMaxUpdates - num_updates_;
  if (auto found = converter_.updates(*window.start, period, end_step, at_most)) {
    num_updates_ += found->size();
    return *found;
  }
  fault(fmt::format(
      "{} has more than {} updates{}: lengthen its period", now().tag(), at_most,
      num_updates_ > 0 ? fmt::format(" (of {} for a recipe)", StepConverter::kMaxUpdates) : ""));
  return {};
}

void TimelineBuilder::add(int64_t step, ActionKind kind, double value, int param_set) {
  timeline_.actions_.push_back(
      {.step = step, .kind = kind, .value = value, .modifier = current_, .param_set = param_set});
}

void TimelineBuilder::add_for_groups(int64_t step, ActionKind kind, double value,
                                     const ParamGroups& groups) {
  // Without a model the recipe may name more groups than a run has, so "all" must not be assumed.
  const bool means_all = groups.all() || (inputs_.params && groups.names_each_known());
  const std::vector<int> numbers = means_all ? std::vector<int>{kAllGroups} : groups.numbers;
  for (const int group : numbers)
    timeline_.actions_.push_back(
        {.step = step, .kind = kind, .value = value, .modifier = current_, .group = group});
}

void TimelineBuilder::add_formula(int64_t first_step, const LrSchedule& formula,
                                  const ParamGroups& groups) {
  const size_t first = timeline_.actions_.size();
  add_for_groups(first_step, ActionKind::kSetLearningRate, formula.at(first_step), groups);
  for (size_t i = first; i < timeline_.actions_.size(); ++i)
    timeline_.actions_[i].formula = static_cast<int>(timeline_.rate_formulas_.size());
  timeline_.rate_formulas_.push_back(formula);
}

void TimelineBuilder::add_transform(int64_t step, int param_set, ParamTransform transform) {
  add(step, ActionKind::kTransform, 0, param_set);
  timeline_.actions_.back().transform = static_cast<int>(timeline_.transforms_.size());
  timeline_.transforms_.push_back(std::move(transform));
}

void TimelineBuilder::note(const std::string& message) {
  timeline_.notes_.push_back(
      fmt::format("{}: {}: {}", now().location().text(), now().tag(), message));
}

void TimelineBuilder::note_default(std::string_view key, std::string_view value) {
  if (defaults_noted_.insert(fmt::format("{}.{}", now().tag(), key)).second)
    note(fmt::format("no {} is given: {} is taken", key, value));
}

void TimelineBuilder::warn(const std::string& message) {
  timeline_.warnings_.push_back(
      fmt::format("{}: {}: {}", now().location().text(), now().tag(), message));
}

void TimelineBuilder::fault(const std::string& message) {
  faults_->add(now().location().fault(message));
}

}  // namespace lockstep::recal
