#include "recal/timeline_text.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>

#include "base/text_plot.h"

namespace lockstep::recal {
namespace {

constexpr size_t kShownFirst = 3, kShownLast = 2;  // of a long run of like events

std::string epoch_text(const std::optional<Decimal>& epoch) { return epoch ? epoch->text() : "-"; }
std::string step_text(const std::optional<int64_t>& step) {
  return step ? std::to_string(*step) : "-";
}

std::string modifier_table(const Timeline& timeline) {
  std::string out = fmt::format("{:>3}  {:<24} {:>8} {:>8} {:>9} {:>9}  {}\n", "#", "modifier",
                                "start", "end", "step", "to step", "what");
  for (size_t i = 0; i < timeline.modifiers().size(); ++i) {
    const ModifierEntry& entry = timeline.modifiers()[i];
    out += fmt::format("{:>3}  {:<24} {:>8} {:>8} {:>9} {:>9}  {}\n", i + 1, entry.tag,
                       epoch_text(entry.window.start), epoch_text(entry.window.end),
                       step_text(entry.start_step), step_text(entry.end_step), entry.summary);
  }
  return out;
}

std::string names_text(const ParamSet& set) {
  if (set.names.size() == 1) return set.names.front();
  return fmt::format("{} parameters", set.names.size());
}

std::string event_text(const Timeline& timeline, const Action& action) {
  std::string what;
  if (action.kind == ActionKind::kSetLearningRate) {
    what = fmt::format("learning rate {:.6g}", action.value);
  } else {
    const std::string names =
        names_text(timeline.param_sets()[static_cast<size_t>(action.param_set)]);
    if (action.kind == ActionKind::kPrune)
      what = fmt::format("sparsity {:.6f} for {}", action.value, names);
    if (action.kind == ActionKind::kKeepZeros) what = fmt::format("keep the zeros of {}", names);
    if (action.kind == ActionKind::kRelease) what = fmt::format("let go of {}", names);
  }
  const bool at_end = timeline.total_steps() && action.step >= *timeline.total_steps();
  return fmt::format("{:>9} {:>9.3f}  {:>3}  {}{}\n", action.step, timeline.epoch_of(action.step),
                     action.modifier + 1, what, at_end ? " (at the end of the run)" : "");
}

/// Events in order; of a run of more than 6 of one kind and modifier the middle is left out.
std::string event_list(const Timeline& timeline) {
  const std::vector<Action>& actions = timeline.actions();
  std::string out = fmt::format("{:>9} {:>9}  {:>3}  {}\n", "step", "epoch", "#", "event");
  for (size_t begin = 0; begin < actions.size();) {
    size_t end = begin;
    while (end < actions.size() && actions[end].kind == actions[begin].kind &&
           actions[end].modifier == actions[begin].modifier)
      ++end;
    const bool is_long = end - begin > kShownFirst + kShownLast + 1;
    for (size_t i = begin; i < end; ++i) {
      if (is_long && i == begin + kShownFirst) {
        const size_t num_hidden = end - begin - kShownFirst - kShownLast;
        out += fmt::format("{:>9} {:>9}  {:>3}  ({} more like these)\n", "...", "",
                           actions[i].modifier + 1, num_hidden);
        i += num_hidden;
      }
      out += event_text(timeline, actions[i]);
    }
    begin = end;
  }
  return out;
}

/// A column shows the value at the step in its middle.
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

std::string plan_text(const Timeline& timeline) {
  std::string out = fmt::format("{} steps per epoch; ", timeline.steps_per_epoch());
  out += timeline.total_steps() ? fmt::format("the run has {} epochs, {} steps",
                                              *timeline.max_epochs(), *timeline.total_steps())
                                : std::string("no modifier says how long to train");
  out += fmt::format("; learning rate {} at the start\n", timeline.base_learning_rate());
  out += fmt::format("timeline sha256 {}\n\n", timeline.digest());
  out += modifier_table(timeline) + "\n" + event_list(timeline);
  for (const std::string& note : timeline.notes()) out += fmt::format("note: {}\n", note);
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
