#include <algorithm>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/json.h"
#include "base/text.h"
#include "plot/plot.h"
#include "recal/schedule/timeline_views.h"

// Views of a timeline for `lockstep plan`: text with plots, CSV and JSON.
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
  return timeline.has(ActionKind::kPrune)
             ? "hint: where the loss recovers soon after a mask, use a smaller update_frequency "
               "(0.5: twice an epoch), so that each mask prunes less\n"
             : "";
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

// CSV: one pass over the actions; rows are sorted by step at the end, since rates with a formula
// span many steps.

/// Returns the parameters' names, or the group of a rate.
std::string params_text(const Timeline& timeline, const Action& action) {
  if (action.param_set < 0)
    return action.group == kAllGroups ? "all" : std::to_string(action.group);
  const ParamSet& set = timeline.param_sets()[static_cast<size_t>(action.param_set)];
  return fmt::format("{}", fmt::join(set.names, " "));
}

using Row = std::pair<int64_t, std::string>;  // step, line

/// Writer of the rows of one action.
class ActionRows {
 public:
  ActionRows(const Timeline& timeline, const Action& action, std::vector<Row>* rows)
      : timeline_(timeline),
        rows_(*rows),
        middle_(fmt::format(
            "{},{},{}",
            csv_field(fmt::format("{}:{}", action.modifier + 1,
                                  timeline.modifiers()[static_cast<size_t>(action.modifier)].tag)),
            traits_of(action.kind).name, csv_field(params_text(timeline, action)))) {}

  void add(int64_t step, double value) {
    rows_.emplace_back(
        step, fmt::format("{},{:.9g},{},{}\n", step, timeline_.epoch_of(step), middle_, value));
  }

  void add_formula(int64_t first_step, const LrSchedule& formula) {
    const int64_t num_steps = formula.last_step - first_step;
    // Rounded up, so that at most kMaxFormulaRows rows are written before the last one.
    const int64_t stride = (num_steps + kMaxFormulaRows - 1) / kMaxFormulaRows;
    for (int64_t step = first_step; step < formula.last_step; step += stride)
      add(step, formula.at(step));
    add(formula.last_step, formula.at(formula.last_step));
  }

 private:
  const Timeline& timeline_;
  std::vector<Row>& rows_;
  std::string middle_;
};

// JSON: the whole timeline, for programs that draw or check plans.

using Json = nlohmann::ordered_json;

Json moment_json(const std::optional<TrainTime>& moment) {
  return moment ? Json(moment->sentence_text()) : Json(nullptr);
}

Json group_json(int group) { return group == kAllGroups ? Json("all") : Json(group); }

Json json_of(const ModifierEntry& entry) {
  return {{"tag", entry.tag},
          {"summary", entry.summary},
          {"place", entry.place},
          {"start", moment_json(entry.window.start)},
          {"end", moment_json(entry.window.end)},
          {"start_step", json_or_null(entry.start_step)},
          {"end_step", json_or_null(entry.end_step)},
          {"logs_params", entry.param_logs == ParamLogs::kEverywhere}};
}

Json json_of(const ParamSet& set) {
  return {{"names", set.names},
          {"num_weights", set.num_weights},
          {"mask_type", set.mask_rule.kind.text()},
          {"global_sparsity", set.mask_rule.global},
          {"momentum_buffer_reset", set.momentum_buffer_reset},
          {"score", set.score.text()}};
}

Json json_of(const Timeline& timeline, const Action& action) {
  const bool has_set = action.param_set >= 0;
  return {{"step", action.step},
          {"epoch", timeline.epoch_of(action.step)},
          {"event", traits_of(action.kind).name},
          {"modifier", action.modifier},
          // Either a set of parameters or a group, never both.
          {"params", has_set ? Json(action.param_set) : Json(nullptr)},
          {"group", has_set ? Json(nullptr) : group_json(action.group)},
          {"value", action.value}};
}

/// Describes a rate that follows a formula from its first to its last step.
Json span_json(const Action& action, const LrSchedule& formula) {
  return {{"first_step", action.step},
          {"last_step", formula.last_step},
          {"modifier", action.modifier},
          {"group", group_json(action.group)},
          {"shape", formula.shape == LrSchedule::Shape::kCosine ? "cosine" : "linear"},
          {"first", formula.first},
          {"last", formula.last},
          {"cycle_steps",
           formula.cycles ? Json(formula.cycles->length(formula.steps_per_epoch)) : Json(nullptr)},
          {"text", formula.text()}};
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
      return "release the masks of " + names_text(timeline, action);
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
      return "freeze the quantization ranges";
    case ActionKind::kFreezeBatchNorm:
      return "freeze the statistics of batch normalisation";
    case ActionKind::kStopDistilling:
      return "stop distilling";
    case ActionKind::kSetTemperature:
      return fmt::format("temperature {:.6g} of distillation", action.value);
    case ActionKind::kDistill:
      return fmt::format("distil with hardness {:.6g}", action.value);
  }
  return "";
}

std::string plan_text(const Timeline& timeline) {
  std::string out = fmt::format("{} steps per epoch; ", timeline.steps_per_epoch());
  out += timeline.total_steps() ? fmt::format("the run has {} epochs, {} steps",
                                              *timeline.max_epochs(), *timeline.total_steps())
                                : std::string("no modifier sets the length of the training");
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

std::string plan_csv(const Timeline& timeline) {
  std::vector<Row> rows;
  for (const Action& action : timeline.actions()) {
    ActionRows own(timeline, action, &rows);
    if (action.formula < 0)
      own.add(action.step, action.value);
    else
      own.add_formula(action.step, timeline.rate_formulas()[static_cast<size_t>(action.formula)]);
  }
  // Stable, so that changes at one step keep their order of execution.
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return a.first < b.first; });
  std::string out = "step,epoch,modifier,event,params,value\n";
  for (const auto& [step, line] : rows) out += line;
  return out;
}

std::string plan_json(const Timeline& timeline) {
  Json modifiers = Json::array(), sets = Json::array(), actions = Json::array(),
       spans = Json::array();
  for (const ModifierEntry& entry : timeline.modifiers()) modifiers.push_back(json_of(entry));
  for (const ParamSet& set : timeline.param_sets()) sets.push_back(json_of(set));
  for (const Action& action : timeline.actions()) {
    actions.push_back(json_of(timeline, action));
    if (action.formula >= 0)
      spans.push_back(
          span_json(action, timeline.rate_formulas()[static_cast<size_t>(action.formula)]));
  }
  const Json all{{"steps_per_epoch", timeline.steps_per_epoch()},
                 {"total_steps", json_or_null(timeline.total_steps())},
                 {"base_learning_rate", timeline.base_learning_rate()},
                 {"digest", timeline.digest()},
                 {"modifiers", modifiers},
                 {"param_sets", sets},
                 {"actions", actions},
                 {"spans", spans},
                 {"notes", timeline.notes()},
                 {"warnings", timeline.warnings()}};
  return json_text(all, 2) + "\n";
}

}  // namespace lockstep::recal
