#include "recal/plan/timeline_views.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

// One pass over the actions; rows are sorted by step at the end, since rates with a formula span
// many steps.
namespace lockstep::recal {
namespace {

/// Quotes a field as in RFC 4180.
std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

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
            quoted(fmt::format("{}:{}", action.modifier + 1,
                               timeline.modifiers()[static_cast<size_t>(action.modifier)].tag)),
            traits_of(action.kind).name, quoted(params_text(timeline, action)))) {}

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

}  // namespace

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

}  // namespace lockstep::recal
