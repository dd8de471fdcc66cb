// The timeline's canonical text, which does not depend on the order of modifiers in the recipe. It
// is stored in checkpoints: a change of its form makes every earlier run look like another recipe.

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "recal/timeline/timeline.h"

namespace lockstep::recal {
namespace {

std::string text_of(const ParamSet& set) {
  return fmt::format("{}{}{}: {}", set.mask_rule.kind.text(), set.mask_rule.global ? " global" : "",
                     set.momentum_buffer_reset ? " momentum_buffer_reset" : "",
                     fmt::join(set.names, " "));
}

/// Numbers each different set once, in the order of its text.
std::map<std::string, int> numbered(const std::vector<ParamSet>& sets) {
  std::map<std::string, int> numbers;
  for (const ParamSet& set : sets) numbers[text_of(set)] = 0;
  int next = 0;
  for (auto& [text, number] : numbers) number = next++;
  return numbers;
}

std::string group_text(int group) { return group == kAllGroups ? "all" : std::to_string(group); }

bool is_for_group(ActionKind kind) {
  return kind == ActionKind::kSetLearningRate || kind == ActionKind::kSetWeightDecay;
}

/// Line of one action. The order of its fields must not change: lines are stored and compared.
std::string line_of(const Action& action, int param_set, const std::vector<LrSchedule>& formulas,
                    const std::vector<ParamTransform>& transforms) {
  const std::string target = is_for_group(action.kind)
                                 ? fmt::format("group {}", group_text(action.group))
                                 : fmt::format("params {}", param_set);
  if (action.transform >= 0)
    return fmt::format("step {} {} {}: {}\n", action.step, traits_of(action.kind).name, target,
                       transforms[static_cast<size_t>(action.transform)].name);
  const std::string value = action.formula < 0
                                ? fmt::format("{}", action.value)
                                : formulas[static_cast<size_t>(action.formula)].canonical_text();
  return fmt::format("step {} {} {}: {}\n", action.step, traits_of(action.kind).name, target,
                     value);
}

}  // namespace

std::string Timeline::canonical_text() const {
  std::string out = fmt::format(
      "lockstep timeline 2\nsteps_per_epoch {}\nbase_learning_rate {}\ntotal_steps {}\n"
      "quantized_weights {}\n",
      steps_per_epoch_,
      sets_learning_rate() ? fmt::format("{}", base_learning_rate_) : "unused",  // optimizer's own
      total_steps_.value_or(-1), quantizes_per_channel_ ? "per_channel" : "per_tensor");
  if (!frozen_names_.empty()) out += "frozen_at_start " + frozen_names_ + "\n";
  // Sets are numbered by their text, so that the numbers do not depend on the order of modifiers.
  const std::map<std::string, int> numbers = numbered(param_sets_);
  for (const auto& [text, number] : numbers) out += fmt::format("params {} {}\n", number, text);
  std::vector<int> number_of_set;
  for (const ParamSet& set : param_sets_) number_of_set.push_back(numbers.at(text_of(set)));
  std::vector<std::pair<int64_t, std::string>> lines;
  for (const Action& action : actions_) {
    const int set =
        action.param_set < 0 ? -1 : number_of_set[static_cast<size_t>(action.param_set)];
    lines.emplace_back(action.step, line_of(action, set, rate_formulas_, transforms_));
  }
  std::sort(lines.begin(), lines.end());
  for (const auto& [step, line] : lines) out += line;
  return out;
}

}  // namespace lockstep::recal
