#include "recal/plan/timeline_views.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "plot/plot.h"
#include "recal/timeline/schedule_warnings.h"

// Table of modifiers, list of events and text plots for `lockstep plan`.
namespace lockstep::recal {
namespace {

constexpr size_t kShownFirst = 3, kShownLast = 2;  // of many similar events

std::string step_text(const std::optional<int64_t>& step) {
  return step ? std::to_string(*step) : "-";
}

/// Returns the moment in epochs: as written, or converted if it was written in steps.
std::string epoch_text(const Timeline& timeline, const std::optional<TrainTime>& moment,
                       const std::optional<int64_t>& step) {
  if (moment && moment->kind == TrainTime::Kind::kEpoch) return moment->epoch.text();
  return step ? fmt::format("{:.6g}", timeline.epoch_of(*step)) : "-";
}

/// Returns the table of modifiers, one per line.
std::string modifier_table(const Timeline& timeline) {
  size_t width = 24;
  for (const ModifierEntry& entry : timeline.modifiers()) width = std::max(width, entry.tag.size());
  std::string out = fmt::format("{:>3}  {:<{}} {:>8} {:>8} {:>9} {:>9}  {}\n", "#", "modifier",
                                width, "start", "end", "step", "to step", "what");
  for (size_t i = 0; i < timeline.modifiers().size(); ++i) {
    const ModifierEntry& entry = timeline.modifiers()[i];
    out += fmt::format("{:>3}  {:<{}} {:>8} {:>8} {:>9} {:>9}  {}\n", i + 1, entry.tag, width,
                       epoch_text(timeline, entry.window.start, entry.start_step),
                       epoch_text(timeline, entry.window.end, entry.end_step),
                       step_text(entry.start_step), step_text(entry.end_step), entry.summary);
  }
  return out;
}

std::string names_text(const Timeline& timeline, const Action& action) {
  const ParamSet& set = timeline.param_sets()[static_cast<size_t>(action.param_set)];
  if (set.names.size() == 1) return set.names.front();
  return fmt::format("{} parameters", set.names.size());
}

/// Describes a learning rate: a value, or the formula that it follows.
std::string rate_text(const Timeline& timeline, const Action& action) {
  const std::string rate =
      action.formula < 0 ? fmt::format("{:.6g}", action.value)
                         : timeline.rate_formulas()[static_cast<size_t>(action.formula)].text();
  return fmt::format("learning rate {}{}", rate, of_group(action.group));
}

/// Returns the line of one event, with a note if it happens at or after the run's end.
std::string event_text(const Timeline& timeline, const Action& action) {
  std::string when;
  if (const std::optional<int64_t> total = timeline.total_steps(); total && action.step >= *total)
    when = is_reached(action, *total) ? " (at the end of the run)" : " (never: the run has ended)";
  return fmt::format("{:>9} {:>9.3f}  {:>3}  {}{}\n", action.step, timeline.epoch_of(action.step),
                     action.modifier + 1, describe(timeline, action), when);
}

/// Position of an action among those of its kind and modifier, and their number.
struct Rank {
  size_t at = 0;
  size_t of = 0;
  bool is_hidden() const {
    // Hide only if that saves more than the line that replaces them.
    return of > kShownFirst + kShownLast + 1 && at >= kShownFirst && at + kShownLast < of;
  }
  bool is_first_hidden() const { return is_hidden() && at == kShownFirst; }
};

/// Counts each action among those of its kind and modifier.
std::vector<Rank> ranks_of(const std::vector<Action>& actions) {
  std::map<std::pair<int, ActionKind>, size_t> counts;
  std::vector<Rank> ranks;
  for (const Action& action : actions)
    ranks.push_back({counts[{action.modifier, action.kind}]++, 0});
  for (size_t i = 0; i < actions.size(); ++i)
    ranks[i].of = counts[{actions[i].modifier, actions[i].kind}];
  return ranks;
}

/// Lists the events in order. If one kind and modifier has more than 6, the middle ones are
/// omitted.
std::string event_list(const Timeline& timeline) {
  const std::vector<Action>& actions = timeline.actions();
  const std::vector<Rank> ranks = ranks_of(actions);
  std::string out = fmt::format("{:>9} {:>9}  {:>3}  {}\n", "step", "epoch", "#", "event");
  for (size_t i = 0; i < actions.size(); ++i) {
    if (ranks[i].is_first_hidden())
      out += fmt::format("{:>9} {:>9}  {:>3}  ({} more like these)\n", "...", "",
                         actions[i].modifier + 1, ranks[i].of - kShownFirst - kShownLast);
    if (!ranks[i].is_hidden()) out += event_text(timeline, actions[i]);
  }
  return out;
}

/// Returns the recipe language's advice about how often to prune.
std::string hint_text(const Timeline& timeline) {
  for (const Action& action : timeline.actions())
    if (action.kind == ActionKind::kPrune)
      return "hint: where the loss recovers soon after a mask, take a smaller update_frequency "
             "(0.5: twice an epoch), so that each mask takes away less\n";
  return "";
}

/// Plots values; a column shows the value at the step in its middle.
std::string plot(const std::string& heading, const Timeline& timeline,
                 const std::function<double(int64_t)>& value_at) {
  constexpr int kColumns = chart::kTextPlotColumns;
  const int64_t total = *timeline.total_steps();
  chart::TextPlot shown{.heading = heading, .x_end = timeline.epoch_of(total), .x_label = "epochs"};
  for (int column = 0; column < kColumns; ++column)
    shown.values.push_back(
        value_at(std::min(total - 1, total * (2 * column + 1) / (2 * kColumns))));
  return chart::text_plot(shown);
}

}  // namespace

std::string describe(const Timeline& timeline, const Action& action) {
  switch (action.kind) {
    case ActionKind::kSetLearningRate:
      return rate_text(timeline, action);
    case ActionKind::kSetWeightDecay:
      return fmt::format("weight decay {:.6g}{}", action.value, of_group(action.group));
    case ActionKind::kPrune:
      return fmt::format("sparsity {:.6f} for {}", action.value, names_text(timeline, action));
    case ActionKind::kKeepZeros:
      return "keep the zeros of " + names_text(timeline, action);
    case ActionKind::kRelease:
      return "let go of " + names_text(timeline, action);
    case ActionKind::kSetTrainable:
      return (action.value != 0 ? "train " : "freeze ") + names_text(timeline, action);
    case ActionKind::kSetParam:
      return fmt::format("set {} to {:.6g}", names_text(timeline, action), action.value);
    case ActionKind::kTransform:
      return fmt::format("{} of {}",
                         timeline.transforms()[static_cast<size_t>(action.transform)].name,
                         names_text(timeline, action));
    case ActionKind::kQuantize:
      return "quantize " + names_text(timeline, action);
    case ActionKind::kFreezeObservers:
      return "keep the quantization ranges as they are";
    case ActionKind::kFreezeBatchNorm:
      return "keep the statistics of batch normalisation as they are";
  }
  return "";
}

std::string plan_text(const Timeline& timeline) {
  std::string out = fmt::format("{} steps per epoch; ", timeline.steps_per_epoch());
  out += timeline.total_steps() ? fmt::format("the run has {} epochs, {} steps",
                                              *timeline.max_epochs(), *timeline.total_steps())
                                : std::string("no modifier says how long to train");
  out += fmt::format("; learning rate {} at the start\n", timeline.base_learning_rate());
  out += fmt::format("timeline sha256 {}\n\n", timeline.digest());
  out += modifier_table(timeline) + "\n" + event_list(timeline);
  for (const std::string& note : timeline.notes()) out += fmt::format("note: {}\n", note);
  out += hint_text(timeline);
  for (const std::string& warning : timeline.warnings())
    out += fmt::format("warning: {}\n", warning);
  return out;
}

std::string plot_text(const Timeline& timeline) {
  if (timeline.total_steps().value_or(0) <= 0) return "";
  return plot("learning rate", timeline,
              [&](int64_t step) { return timeline.learning_rate_at(step); }) +
         plot("target sparsity", timeline,
              [&](int64_t step) { return timeline.target_sparsity_at(step); });
}

}  // namespace lockstep::recal
