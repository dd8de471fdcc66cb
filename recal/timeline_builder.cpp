#include "recal/timeline_builder.h"

#include <algorithm>

#include <fmt/format.h>

#include "recal/timeline_advice.h"

namespace lockstep::recal {
namespace {

std::vector<std::string> names_of(const TimelineInputs& inputs) {
  std::vector<std::string> names;
  if (inputs.params)
    for (const ParamInfo& info : *inputs.params) names.push_back(info.name);
  return names;
}

}  // namespace

TimelineBuilder::TimelineBuilder(const Recipe& recipe, const TimelineInputs& inputs, Faults* faults)
    : recipe_(recipe),
      inputs_(inputs),
      faults_(faults),
      calendar_(recipe, inputs.steps_per_epoch, inputs.max_steps),
      rates_("the learning rate", inputs.steps_per_epoch),
      decays_("the weight decay", inputs.steps_per_epoch),
      trainable_(names_of(inputs), inputs.frozen_at_start),
      quantization_(inputs.layers) {}

Timeline TimelineBuilder::build() {
  timeline_.steps_per_epoch_ = inputs_.steps_per_epoch;
  timeline_.base_learning_rate_ = inputs_.base_learning_rate;
  timeline_.total_steps_ = calendar_.total_steps();
  timeline_.min_epochs_ = calendar_.min_epochs();
  timeline_.max_epochs_ = calendar_.max_epochs();
  contribute_all();
  add_trainable_changes();
  check_quantization();
  timeline_.file_actions(inputs_);
  timeline_.notes_ = widening_notes(timeline_);
  if (inputs_.params && !inputs_.frozen_at_start.empty())
    timeline_.notes_.push_back(fmt::format("{} of {} parameters are frozen from the start",
                                           inputs_.frozen_at_start.size(), inputs_.params->size()));
  const std::vector<std::string> idle = idle_warnings(timeline_, inputs_.max_steps);
  timeline_.warnings_.insert(timeline_.warnings_.end(), idle.begin(), idle.end());
  return std::move(timeline_);
}

void TimelineBuilder::contribute_all() {
  const int num_modifiers = static_cast<int>(recipe_.modifiers().size());
  for (current_ = 0; current_ < num_modifiers; ++current_) {
    const bool is_known = calendar_.knows(now().window());
    if (!is_known)
      fault(
          fmt::format("{} lasts to the run's end (-1), and nothing says where that is: add an "
                      "!EpochRangeModifier, or train.max_steps to the run file",
                      now().tag()));
    describe_current();
    if (is_known) now().contribute(this);
  }
}

void TimelineBuilder::describe_current() {
  const Window window = now().window();
  const auto step_or_none = [&](const std::optional<Moment>& moment) {
    return moment && calendar_.knows(window) ? std::optional<int64_t>(step_of(*moment))
                                             : std::nullopt;
  };
  timeline_.modifiers_.push_back({.tag = now().tag(),
                                  .summary = now().summary(),
                                  .place = now().place().text(),
                                  .window = window,
                                  .start_step = step_or_none(window.start),
                                  .end_step = step_or_none(window.end),
                                  .logs_params = now().logs_params()});
}

int TimelineBuilder::index_of(const Modifier* wanted) const {
  const auto& all = recipe_.modifiers();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& each) { return each.get() == wanted; });
  return static_cast<int>(found - all.begin());
}

void TimelineBuilder::add_trainable_changes() {
  for (const TrainableChange& change : trainable_.changes(faults_)) {
    current_ = index_of(change.modifier);
    add(change.step, ActionKind::kSetTrainable, change.trainable ? 1 : 0,
        add_param_set(change.params, ""));
  }
}

void TimelineBuilder::check_quantization() {
  for (const auto& [modifier, text] :
       quantization_.check_pruning(pruning_, calendar_.total_steps(), faults_)) {
    current_ = index_of(modifier);
    warn(text);
  }
  timeline_.quantizes_per_channel_ = quantization_.per_channel();
}

std::optional<StepRange> TimelineBuilder::steps_of(const Window& window) {
  const StepRange steps{step_of(*window.start), step_of(*window.end)};
  if (steps.first < steps.last) return steps;
  if (steps.first == steps.last && window.start->kind == window.end->kind) return steps;
  fault(fmt::format("{} ends at {} (step {}), which is not after its start at {} (step {})",
                    now().tag(), window.end->sentence_text(), steps.last,
                    window.start->sentence_text(), steps.first));
  return std::nullopt;
}

std::vector<PeriodicUpdate> TimelineBuilder::updates(const Window& window, const Period& period,
                                                     int64_t end_step) {
  const size_t at_most = Calendar::kMaxUpdates - num_updates_;
  if (auto found = calendar_.updates(*window.start, period, end_step, at_most)) {
    num_updates_ += found->size();
    return *found;
  }
  fault(fmt::format(
      "{} has more than {} updates{}: lengthen its period", now().tag(), at_most,
      num_updates_ > 0 ? fmt::format(" (of {} for a recipe)", Calendar::kMaxUpdates) : ""));
  return {};
}

void TimelineBuilder::add(int64_t step, ActionKind kind, double value, int param_set) {
  timeline_.actions_.push_back(
      {.step = step, .kind = kind, .value = value, .modifier = current_, .param_set = param_set});
}

void TimelineBuilder::add_for_group(int64_t step, ActionKind kind, double value, int group) {
  timeline_.actions_.push_back(
      {.step = step, .kind = kind, .value = value, .modifier = current_, .group = group});
}

void TimelineBuilder::add_formula(int64_t first_step, const RateFormula& formula, int group) {
  add_for_group(first_step, ActionKind::kSetLearningRate, formula.at(first_step), group);
  timeline_.actions_.back().formula = static_cast<int>(timeline_.rate_formulas_.size());
  timeline_.rate_formulas_.push_back(formula);
}

void TimelineBuilder::warn(const std::string& message) {
  timeline_.warnings_.push_back(
      fmt::format("{}: {}: {}", now().place().text(), now().tag(), message));
}

void TimelineBuilder::fault(const std::string& message) {
  faults_->add(now().place().fault(message));
}

}  // namespace lockstep::recal
