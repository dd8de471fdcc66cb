// Reports of ScheduledModifierManager: sparsities, summaries for metrics, and the warnings at the
// start of a run. Nothing here changes state. The counts come from the masks, so only measure() and
// unkept_zeros() read the weights.

#include <algorithm>
#include <set>
#include <span>

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include "base/log.h"
#include "recal/scheduled_modifier_manager.h"

namespace lockstep::recal {
namespace {

double fraction(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

double pruned_fraction(const Mask& mask) { return fraction(mask.num_pruned, mask.weight.numel()); }

/// Adds learning rate and weight decay of each parameter group. Each value also appears under the
/// name of the modifier that set it.
void add_rates(const Timeline& timeline, int64_t step, const std::vector<std::string>& modifiers,
               std::vector<Summary>* all) {
  const auto add = [&](const char* what, int group, const Action* setter, double value) {
    const std::string name =
        fmt::format("{}/{}", what, kParamGroupNames[static_cast<size_t>(group)]);
    all->push_back({name, value});
    if (setter != nullptr)
      all->push_back({modifiers[static_cast<size_t>(setter->modifier)] + "/" + name, value});
  };
  for (int group = 0; group < kNumParamGroups; ++group) {
    if (timeline.sets_learning_rate())
      add("learning_rate", group, timeline.learning_rate_setter(step, group),
          timeline.learning_rate_at(step, group));
    if (const Action* setter = timeline.weight_decay_setter(step, group))
      add("weight_decay", group, setter, setter->value);
  }
}

/// Default limit of per-parameter curves for one modifier. `log_types` can ask for all.
constexpr size_t kMaxParamsShown = 200;

std::span<const int64_t> shown_params(ParamLogs logs, const std::vector<int64_t>& params) {
  if (logs == ParamLogs::kNowhere) return {};
  const std::span<const int64_t> all(params);
  return logs == ParamLogs::kByDefault ? all.first(std::min(all.size(), kMaxParamsShown)) : all;
}

}  // namespace

std::vector<std::string> modifier_names(const Timeline& timeline) {
  std::vector<std::string> names;
  for (size_t i = 0; i < timeline.modifiers().size(); ++i)
    names.push_back(fmt::format("{}:{}", i + 1, timeline.modifiers()[i].tag));
  return names;
}

double ScheduledModifierManager::covered_sparsity() const {
  int64_t num_pruned = 0;
  int64_t num_weights = 0;
  for (const Mask& mask : masks_.all()) {
    num_pruned += mask.num_pruned;
    num_weights += mask.weight.numel();
  }
  return fraction(num_pruned, num_weights);
}

double ScheduledModifierManager::sparsity() const {
  int64_t num_pruned = 0;
  for (const Mask& mask : masks_.all()) num_pruned += mask.num_pruned;
  return fraction(num_pruned, num_prunable_weights_);
}

std::vector<ParamSparsity> ScheduledModifierManager::measure() const {
  std::vector<ParamSparsity> result;
  for (const Param& param : params_) {
    if (!param.prunable) continue;
    const int64_t num_weights = param.tensor.numel();
    result.push_back({param.name, num_weights, 0,
                      num_weights - param.tensor.detach().count_nonzero().item<int64_t>()});
    // Only covered parameters have a mask; for the others num_pruned stays 0.
    for (const Mask& mask : masks_.all())
      if (mask.name == param.name) result.back().num_pruned = mask.num_pruned;
  }
  return result;
}

std::vector<Summary> ScheduledModifierManager::layer_sparsities(bool all) const {
  std::vector<Summary> result;
  for (const Mask& mask : masks_.all())
    if (all || timeline().logs_param(mask.param))
      result.push_back({mask.name, pruned_fraction(mask)});
  return result;
}

void ScheduledModifierManager::report_start() const {
  for (const std::string& warning : unkept_zeros()) log::warning("recipe", warning);
  constexpr size_t kNamesShown = 3;
  std::vector<std::string> names;
  // Such parameters look prunable, but __ALL_PRUNABLE__ leaves them out.
  for (const Param& param : params_)
    if (param.tensor.dim() >= 2 && !param.prunable) names.push_back(param.name);
  if (masks_.all().empty() || names.empty()) return;
  log::info(
      "recipe",
      fmt::format("{} parameters of 2 dimensions or more belong to no layer that "
                  "__ALL_PRUNABLE__ names: {}{}",
                  names.size(),
                  fmt::join(std::span(names).first(std::min(names.size(), kNamesShown)), ", "),
                  names.size() > kNamesShown ? ", ..." : ""));
}

std::vector<std::string> ScheduledModifierManager::unkept_zeros() const {
  constexpr int64_t kManyZeros = 20;  // warn from 1 zero in 20 weights
  std::vector<std::string> warnings;
  std::set<int> seen;
  for (const Action& action : timeline().actions()) {
    // Several actions may belong to one modifier; one warning each is enough.
    if (action.kind != ActionKind::kQuantize || !seen.insert(action.modifier).second) continue;
    std::vector<std::string> names;
    for (const int64_t index : timeline().params_of(action.modifier)) {
      const Param& param = params_[static_cast<size_t>(index)];
      if (masks_.covers(index)) continue;
      const int64_t num_weights = param.tensor.numel();
      const int64_t num_zeros = num_weights - param.tensor.detach().count_nonzero().item<int64_t>();
      // A weight of zeros only is more likely an initial value than a pruned weight.
      if (num_zeros * kManyZeros >= num_weights && num_zeros < num_weights)
        names.push_back(
            fmt::format("{} ({:.0f} %)", param.name, 100 * fraction(num_zeros, num_weights)));
    }
    if (names.empty()) continue;
    const ModifierEntry& entry = timeline().modifiers()[static_cast<size_t>(action.modifier)];
    warnings.push_back(fmt::format(
        "{}: {}: it quantizes pruned weights whose zeros no modifier keeps, so training makes them "
        "nonzero again: {}; keep them with a ConstantKSModifier listed before it",
        entry.place, entry.tag, fmt::join(names, ", ")));
  }
  return warnings;
}

std::vector<Summary> ScheduledModifierManager::summaries(int64_t step) const {
  std::vector<Summary> all;
  const std::vector<std::string> names = modifier_names(timeline());
  add_rates(timeline(), step, names, &all);
  // Trainability and parameter values come from the timeline. Sparsities come from the masks.
  const std::vector<bool> trainable = timeline().trainable_at(step);
  for (size_t i = 0; i < names.size(); ++i) {
    const ModifierEntry& entry = timeline().modifiers()[i];
    const auto modifier = static_cast<int>(i);
    if (const auto target = timeline().target_sparsity_at(step, modifier))
      all.push_back({names[i] + "/target_sparsity", *target});
    if (entry.quantizes_from)
      all.push_back({names[i] + "/on", step >= *entry.quantizes_from ? 1.0 : 0.0});
    const std::optional<double> value = timeline().param_value_at(step, modifier);
    for (const int64_t param : shown_params(entry.param_logs, timeline().params_of(modifier))) {
      const std::string name = names[i] + "/" + params_[static_cast<size_t>(param)].name;
      if (entry.works_on_masks)
        all.push_back({name + "/sparsity", pruned_fraction(masks_.of(param))});
      if (entry.sets_trainable)
        all.push_back({name + "/trainable", trainable[static_cast<size_t>(param)] ? 1.0 : 0.0});
      if (value) all.push_back({name + "/value", *value});
    }
  }
  all.push_back({"sparsity", sparsity()});
  all.push_back({"mask_updates", static_cast<double>(num_mask_updates_)});
  all.push_back({"revived_weights", static_cast<double>(num_revived_)});
  const int64_t num_quantized = quantizer_ ? quantizer_->num_quantized() : 0;
  if (quantizer_) all.push_back({"quantized_layers", static_cast<double>(num_quantized)});
  return all;
}

StepInfo ScheduledModifierManager::step_info(int64_t step) const {
  StepInfo all{.summaries = summaries(step), .learning_rates = {}};
  for (int group = 0; group < kNumParamGroups; ++group)
    all.learning_rates[static_cast<size_t>(group)] = learning_rate_at(step, group);
  return all;
}

}  // namespace lockstep::recal
