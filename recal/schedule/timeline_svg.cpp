#include "recal/schedule/timeline_views.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "plot/plot.h"

// Draws the timeline with plot/plot.h. Colours follow the modifiers, so a bar and its curve match.
namespace lockstep::recal {
namespace {

constexpr const char* kRateColor = "#c2571a";
constexpr int64_t kFormulaPoints = 1000;
constexpr const char* kRangeColor = "#7a828c";
constexpr std::array<const char*, 5> kColors = {"#1f6fb2", "#2f8f5b", "#8a4fa8", "#b03a5b",
                                                "#6b7a1f"};

/// Returns a modifier's colour: fixed for rates and epoch ranges, else by position.
const char* color_of(const Timeline& timeline, size_t modifier) {
  const std::string& tag = timeline.modifiers()[modifier].tag;
  if (tag.find("LearningRate") != std::string::npos) return kRateColor;
  return tag == "EpochRangeModifier" ? kRangeColor : kColors[modifier % kColors.size()];
}

/// Returns the number of plotted steps: those of the run, or an epoch more than the last action.
int64_t plotted_steps(const Timeline& timeline) {
  const int64_t last_action = timeline.actions().empty() ? 0 : timeline.actions().back().step;
  return std::max<int64_t>(
      1, timeline.total_steps().value_or(last_action + timeline.steps_per_epoch()));
}

/// Returns the bar's label: the modifier's name without "Modifier", and its summary.
std::string label_of(const ModifierEntry& entry) {
  constexpr std::string_view kSuffix = "Modifier";
  const std::string_view name =
      std::string_view(entry.tag).substr(0, entry.tag.size() - kSuffix.size());
  return fmt::format("{}: {:.90}{}", name, entry.summary, entry.summary.size() > 90 ? "..." : "");
}

/// Returns the bar of a modifier, from its start to its end. Without an end the bar continues to
/// the end of the run, unless the modifier sets a value once: then it is a single moment.
chart::Bar bar_of(const Timeline& timeline, size_t modifier) {
  const ModifierEntry& entry = timeline.modifiers()[modifier];
  const auto first = std::find_if(
      timeline.actions().begin(), timeline.actions().end(),
      [&](const Action& action) { return action.modifier == static_cast<int>(modifier); });
  const bool acts = first != timeline.actions().end();
  const int64_t begin = entry.start_step.value_or(acts ? first->step : 0);
  const bool is_moment =
      acts && entry.start_step && !entry.end_step &&
      (first->kind == ActionKind::kSetLearningRate || first->kind == ActionKind::kSetWeightDecay ||
       first->kind == ActionKind::kSetParam);
  const int64_t end = is_moment ? begin : entry.end_step.value_or(plotted_steps(timeline));
  return {label_of(entry), color_of(timeline, modifier), timeline.epoch_of(begin),
          timeline.epoch_of(end)};
}

/// Adds points of a rate that changes at every step, up to its end or the next rate.
void add_formula_points(const Timeline& timeline, const LrSchedule& formula, int64_t first_step,
                        chart::Curve* curve) {
  const int64_t last_step = std::min(formula.last_step, plotted_steps(timeline));
  const int64_t stride = std::max<int64_t>(1, (last_step - first_step) / kFormulaPoints);
  for (int64_t step = first_step + stride; step < last_step; step += stride)
    curve->points.push_back({timeline.epoch_of(step), formula.at(step)});
  curve->points.push_back({timeline.epoch_of(last_step), formula.at(last_step)});
}

/// Returns a staircase from first_value on, with a mark at each action that `changes` selects.
/// `value_of` returns the value from an action on.
template <typename Picks, typename ValueOf>
chart::Curve curve_of(const Timeline& timeline, std::string label, const char* color,
                      double first_value, const Picks& changes, const ValueOf& value_of) {
  chart::Curve curve{.label = std::move(label), .color = color, .is_staircase = true};
  for (const Action& action : timeline.actions()) {
    if (!changes(action) || action.step > plotted_steps(timeline)) continue;
    if (curve.points.empty() && action.step > 0) curve.points.push_back({0, first_value});
    curve.points.push_back({timeline.epoch_of(action.step), value_of(action)});
    curve.marks.push_back(curve.points.back());
    if (action.formula >= 0)
      add_formula_points(timeline, timeline.rate_formulas()[static_cast<size_t>(action.formula)],
                         action.step, &curve);
  }
  if (curve.points.empty()) curve.points.push_back({0, first_value});
  return curve;
}

double own_value(const Action& action) { return action.value; }

/// Returns one curve for all parameter groups if they have the same changes, else one each.
chart::Panel group_panel(const Timeline& timeline, std::string heading, std::string_view what,
                         ActionKind kind, double first_value) {
  chart::Panel panel{.heading = std::move(heading)};
  bool together = true;
  for (const Action& action : timeline.actions())
    together = together && (action.kind != kind || action.group == kAllGroups);
  const std::array<std::string, kNumParamGroups> names{"of weights", "of the rest"};
  for (int group = 0; group < (together ? 1 : kNumParamGroups); ++group) {
    chart::Curve curve = curve_of(
        timeline,
        fmt::format("{}{}{}, changes", what, together ? "" : " ",
                    together ? "" : names[static_cast<size_t>(group)]),
        group == 0 ? kRateColor : kColors[2], first_value,
        [=](const Action& action) {
          return action.kind == kind && (action.group == kAllGroups || action.group == group);
        },
        own_value);
    // A curve without any known value is omitted.
    if (chart::is_drawable(curve.points.back().y)) panel.curves.push_back(std::move(curve));
  }
  return panel;
}

chart::Panel sparsity_panel(const Timeline& timeline) {
  chart::Panel panel{.heading = "Target sparsity", .least_top = 1};
  for (size_t m = 0; m < timeline.modifiers().size(); ++m) {
    chart::Curve curve = curve_of(
        timeline, fmt::format("modifier {}, updates", m + 1), color_of(timeline, m), 0,
        [m](const Action& action) {
          return action.kind == ActionKind::kPrune && action.modifier == static_cast<int>(m);
        },
        own_value);
    if (!curve.marks.empty()) panel.curves.push_back(std::move(curve));
  }
  return panel;
}

chart::Panel trained_panel(const Timeline& timeline) {
  const auto trained_at = [&](const Action& action) {
    const std::vector<bool> trainable = timeline.trainable_at(action.step);
    return static_cast<double>(std::count(trainable.begin(), trainable.end(), true));
  };
  return {.heading = "Trained parameters",
          .curves = {curve_of(
              timeline, "tensors, changes", kColors[1],
              static_cast<double>(timeline.trainable_at(0).size()),
              [](const Action& action) { return action.kind == ActionKind::kSetTrainable; },
              trained_at)}};
}

chart::Panel quantized_panel(const Timeline& timeline) {
  const auto quantized_at = [&](const Action& action) {
    return static_cast<double>(timeline.quantization_at(action.step).layers.size());
  };
  return {.heading = "Quantized layers",
          .curves = {curve_of(
              timeline, "layers; marks: on, ranges or statistics frozen", kColors[3], 0,
              [](const Action& action) {
                return action.kind == ActionKind::kQuantize ||
                       action.kind == ActionKind::kFreezeObservers ||
                       action.kind == ActionKind::kFreezeBatchNorm;
              },
              quantized_at)}};
}

/// Returns a panel for each value that the recipe changes, and always the learning rate. Counts
/// need a model.
std::vector<chart::Panel> panels_of(const Timeline& timeline) {
  const bool knows_model = !timeline.trainable_at(0).empty();
  std::vector<chart::Panel> panels{group_panel(timeline, "Learning rate", "rate",
                                               ActionKind::kSetLearningRate,
                                               timeline.base_learning_rate())};
  if (timeline.has(ActionKind::kPrune)) panels.push_back(sparsity_panel(timeline));
  if (timeline.has(ActionKind::kSetWeightDecay))
    panels.push_back(group_panel(timeline, "Weight decay that the recipe sets", "decay",
                                 ActionKind::kSetWeightDecay, std::nan("")));
  if (knows_model && timeline.has(ActionKind::kSetTrainable))
    panels.push_back(trained_panel(timeline));
  if (knows_model && timeline.has(ActionKind::kQuantize))
    panels.push_back(quantized_panel(timeline));
  return panels;
}

}  // namespace

std::string plan_svg(const Timeline& timeline, const std::string& title) {
  const int64_t num_steps = plotted_steps(timeline);
  chart::Chart drawing{
      .title = title,
      .subtitle = fmt::format("{} steps per epoch, {} steps; timeline sha256 {:.12}",
                              timeline.steps_per_epoch(), num_steps, timeline.digest()),
      .x_label = "epoch",
      .x_end = timeline.epoch_of(num_steps),
      .panels = panels_of(timeline)};
  for (size_t m = 0; m < timeline.modifiers().size(); ++m)
    drawing.bars.push_back(bar_of(timeline, m));
  return chart::svg_chart(drawing);
}

}  // namespace lockstep::recal
