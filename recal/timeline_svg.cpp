#include "recal/timeline_svg.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/svg_chart.h"

namespace lockstep::recal {
namespace {

constexpr const char* kRateColor = "#c2571a";
constexpr const char* kRangeColor = "#7a828c";
constexpr std::array<const char*, 5> kColors = {"#1f6fb2", "#2f8f5b", "#8a4fa8", "#b03a5b",
                                                "#6b7a1f"};

const char* color_of(const Timeline& timeline, size_t modifier) {
  const std::string& tag = timeline.modifiers()[modifier].tag;
  if (tag.find("LearningRate") != std::string::npos) return kRateColor;
  return tag == "EpochRangeModifier" ? kRangeColor : kColors[modifier % kColors.size()];
}

/// The plotted steps: the run, or past the last action if the recipe does not say how long it is.
int64_t plotted_steps(const Timeline& timeline) {
  const int64_t last_action = timeline.actions().empty() ? 0 : timeline.actions().back().step;
  return std::max<int64_t>(
      1, timeline.total_steps().value_or(last_action + timeline.steps_per_epoch()));
}

int64_t first_action_of(const Timeline& timeline, size_t modifier) {
  for (const Action& action : timeline.actions())
    if (action.modifier == static_cast<int>(modifier)) return action.step;
  return 0;
}

std::string label_of(const ModifierEntry& entry) {
  constexpr std::string_view kSuffix = "Modifier";
  const std::string_view name =
      std::string_view(entry.tag).substr(0, entry.tag.size() - kSuffix.size());
  return fmt::format("{}: {:.90}{}", name, entry.summary, entry.summary.size() > 90 ? "..." : "");
}

/// One bar a modifier, from its start to its end; without an end it runs on, unless it is a single
/// moment.
chart::Bar bar_of(const Timeline& timeline, size_t modifier) {
  const ModifierEntry& entry = timeline.modifiers()[modifier];
  const bool is_moment = entry.start_step && !entry.end_step;
  const int64_t begin = entry.start_step.value_or(first_action_of(timeline, modifier));
  const int64_t end = is_moment ? begin : entry.end_step.value_or(plotted_steps(timeline));
  return {label_of(entry), color_of(timeline, modifier), timeline.epoch_of(begin),
          timeline.epoch_of(end)};
}

/// A staircase from first_value on, with a mark at each of the actions that `changes` picks.
template <typename Picks>
chart::Curve curve_of(const Timeline& timeline, std::string label, const char* color,
                      double first_value, const Picks& changes) {
  chart::Curve curve{.label = std::move(label), .color = color, .kind = chart::LineKind::kSteps};
  curve.points.push_back({0, first_value});
  for (const Action& action : timeline.actions()) {
    if (!changes(action) || action.step > plotted_steps(timeline)) continue;
    curve.points.push_back({timeline.epoch_of(action.step), action.value});
    curve.marks.push_back(curve.points.back());
  }
  return curve;
}

chart::Panel rate_panel(const Timeline& timeline) {
  return {.heading = "Learning rate",
          .curves = {curve_of(
              timeline, "rate, changes", kRateColor, timeline.base_learning_rate(),
              [](const Action& action) { return action.kind == ActionKind::kSetLearningRate; })}};
}

chart::Panel sparsity_panel(const Timeline& timeline) {
  chart::Panel panel{.heading = "Target sparsity", .least_top = 1};
  for (size_t m = 0; m < timeline.modifiers().size(); ++m) {
    chart::Curve curve = curve_of(timeline, fmt::format("modifier {}, updates", m + 1),
                                  color_of(timeline, m), 0, [m](const Action& action) {
                                    return action.kind == ActionKind::kPrune &&
                                           action.modifier == static_cast<int>(m);
                                  });
    if (!curve.marks.empty()) panel.curves.push_back(std::move(curve));
  }
  return panel;
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
      .panels = {rate_panel(timeline), sparsity_panel(timeline)}};
  for (size_t m = 0; m < timeline.modifiers().size(); ++m)
    drawing.bars.push_back(bar_of(timeline, m));
  return chart::svg_chart(drawing);
}

}  // namespace lockstep::recal
