// What the manager tells of itself.

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include "recal/scheduled_modifier_manager.h"

namespace lockstep::recal {
namespace {

double fraction(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

void add_rates(const Timeline& timeline, int64_t step, std::vector<Summary>* all) {
  for (int group = 0; group < kNumParamGroups; ++group) {
    if (timeline.sets_learning_rate())
      all->push_back({fmt::format("learning_rate/{}", kParamGroupNames[static_cast<size_t>(group)]),
                      timeline.learning_rate_at(step, group)});
    if (const std::optional<double> decay = timeline.weight_decay_at(step, group))
      all->push_back(
          {fmt::format("weight_decay/{}", kParamGroupNames[static_cast<size_t>(group)]), *decay});
  }
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
    for (const Mask& mask : masks_.all())
      if (mask.name == param.name) result.back().num_pruned = mask.num_pruned;
  }
  return result;
}

std::vector<Summary> ScheduledModifierManager::layer_sparsities(bool all) const {
  std::vector<Summary> result;
  for (const Mask& mask : masks_.all())
    if (all || timeline().logs_param(mask.param))
      result.push_back({mask.name, fraction(mask.num_pruned, mask.weight.numel())});
  return result;
}

std::vector<Summary> ScheduledModifierManager::summaries(int64_t step) const {
  std::vector<Summary> all;
  add_rates(timeline(), step, &all);
  const std::vector<std::string> names = modifier_names(timeline());
  for (size_t i = 0; i < names.size(); ++i)
    if (const auto target = timeline().target_sparsity_at(step, static_cast<int>(i)))
      all.push_back({"target_sparsity/" + names[i], *target});
  all.push_back({"sparsity", sparsity()});
  for (const Summary& layer : layer_sparsities(false))
    all.push_back({"sparsity/" + layer.name, layer.value});
  all.push_back({"mask_updates", static_cast<double>(num_mask_updates_)});
  all.push_back({"revived_weights", static_cast<double>(num_revived_)});
  const int64_t num_quantized = quantizer_ ? quantizer_->num_quantized() : 0;
  if (quantizer_) all.push_back({"quantized_layers", static_cast<double>(num_quantized)});
  return all;
}

Extras ScheduledModifierManager::extras(int64_t step) const {
  Extras all{.summaries = summaries(step), .learning_rates = {}};
  for (int group = 0; group < kNumParamGroups; ++group)
    all.learning_rates[static_cast<size_t>(group)] = learning_rate_at(step, group);
  return all;
}

}  // namespace lockstep::recal
