#include "metrics/recipe_metrics.h"

#include <set>

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "metrics/series.h"

// Series of modifiers and parameter groups are limited: a large recipe would otherwise fill the
// page.
namespace lockstep::metrics {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Registry;

namespace {

constexpr size_t kMaxLayers = 200;
// A recipe for every layer of a large network has hundreds of modifiers; the page shows the first
// ones.
constexpr size_t kMaxModifiers = 16, kMaxGroups = 8;

/// Returns the first `max` names. Warns which series lack the others.
std::vector<std::string> shown(std::vector<std::string> names, size_t max, const char* series) {
  if (names.size() <= max) return names;
  log::warning("metrics", fmt::format("the page shows {} of the first {} of {}: TensorBoard "
                                      "(recal/...) and the log have all",
                                      series, max, names.size()));
  names.resize(max);
  return names;
}

}  // namespace

struct RecipeMetrics::Series {
  Series(Registry& r, const std::vector<std::string>& modifiers,
         const std::vector<std::string>& groups)
      : sparsity(gauge(r, "lockstep_sparsity_ratio")),
        parameters(gauge(r, "lockstep_parameters")),
        prunable(gauge(r, "lockstep_prunable_parameters")),
        pruned(gauge(r, "lockstep_pruned_parameters")),
        trainable(gauge(r, "lockstep_trainable_parameters")),
        mask_updates(counter(r, "lockstep_mask_updates_total")),
        regrown(counter(r, "lockstep_revived_weights_total")),
        quantized_layers(gauge(r, "lockstep_quantized_layers")),
        epochs_planned(gauge(r, "lockstep_epochs_planned")),
        rate_family(gauge_family(r, "lockstep_learning_rate")),
        decay_family(gauge_family(r, "lockstep_weight_decay")),
        layers(r, "lockstep_layer_sparsity_ratio", kMaxLayers, "TensorBoard"),
        target_family(gauge_family(r, "lockstep_target_sparsity_ratio")),
        modifier_names(shown(modifiers, kMaxModifiers, "targets and updates of modifiers")),
        targets(modifier_names.size()),
        num_groups(groups.size()),
        group_names(shown(groups, kMaxGroups, "rates of parameter groups")) {
    check(std::set(modifiers.begin(), modifiers.end()).size() == modifiers.size(),
          "two modifiers with the same name");
    auto& updates = counter_family(r, "lockstep_modifier_updates_total");
    for (const std::string& name : modifier_names)
      modifier_updates.push_back(&updates.Add({{"modifier", name}}));
  }

  Gauge &sparsity, &parameters, &prunable, &pruned, &trainable;
  Counter &mask_updates, &regrown;
  Gauge &quantized_layers, &epochs_planned;
  Family<Gauge>&rate_family, &decay_family;
  CappedGauges layers;
  Family<Gauge>& target_family;
  std::vector<std::string> modifier_names;
  std::vector<Counter*> modifier_updates;  // by modifier, as `targets` below
  std::vector<Gauge*> targets;             // null until known: most modifiers never have a target
  size_t num_groups;
  std::vector<std::string> group_names;
  std::vector<Gauge*> rates, decays;  // by group; empty until known
};

RecipeMetrics::RecipeMetrics() = default;
RecipeMetrics::~RecipeMetrics() = default;

RecipeMetrics::RecipeMetrics(Registry& registry, const std::vector<std::string>& modifiers,
                             const std::vector<std::string>& groups)
    : series_(std::make_unique<Series>(registry, modifiers, groups)) {}

void RecipeMetrics::set_rates(std::span<const GroupSample> rates) {
  if (!series_) return;
  // The trainer passes all groups, although the page may show fewer.
  check(rates.size() == series_->num_groups, "a rate for each parameter group");
  // Created at the first call, so that no wrong 0 is exported before.
  for (const std::string& name : series_->group_names) {
    if (series_->rates.size() == series_->group_names.size()) break;
    series_->rates.push_back(&series_->rate_family.Add({{"group", name}}));
    series_->decays.push_back(&series_->decay_family.Add({{"group", name}}));
  }
  for (size_t i = 0; i < series_->rates.size(); ++i) {
    series_->rates[i]->Set(rates[i].learning_rate);
    series_->decays[i]->Set(rates[i].weight_decay);
  }
}

void RecipeMetrics::set_parameter_counts(const ParameterCounts& counts) {
  if (!series_) return;
  const auto prunable = static_cast<double>(counts.num_prunable);
  const auto pruned = static_cast<double>(counts.num_pruned);
  series_->parameters.Set(static_cast<double>(counts.num_parameters));
  series_->prunable.Set(prunable);
  series_->pruned.Set(pruned);
  series_->trainable.Set(static_cast<double>(counts.num_trainable));
  // A model without prunable weights has sparsity 0.
  series_->sparsity.Set(prunable > 0 ? pruned / prunable : 0);
}

void RecipeMetrics::set_target_sparsity(size_t modifier, double ratio) {
  // Later modifiers are not on the page; see shown().
  if (!series_ || modifier >= kMaxModifiers) return;
  Gauge*& target = series_->targets.at(modifier);
  if (target == nullptr)
    target = &series_->target_family.Add({{"modifier", series_->modifier_names[modifier]}});
  target->Set(ratio);
}

void RecipeMetrics::record_modifier_update(size_t modifier) {
  if (series_ && modifier < kMaxModifiers) series_->modifier_updates.at(modifier)->Increment();
}

void RecipeMetrics::add_mask_updates(int64_t count) {
  if (series_) series_->mask_updates.Increment(static_cast<double>(count));
}

void RecipeMetrics::add_revived_weights(int64_t count) {
  if (series_) series_->regrown.Increment(static_cast<double>(count));
}

void RecipeMetrics::set_layer_sparsity(const std::string& param, double ratio) {
  if (series_) series_->layers.set({{"param", param}}, ratio);
}

void RecipeMetrics::set_epochs_planned(double epochs) {
  if (series_) series_->epochs_planned.Set(epochs);
}

std::optional<double> RecipeMetrics::learning_rate() const {
  if (!series_ || series_->rates.empty()) return std::nullopt;
  return series_->rates.front()->Value();
}

double RecipeMetrics::sparsity() const { return series_ ? series_->sparsity.Value() : 0; }

void RecipeMetrics::set_quantized_layers(int64_t count) {
  if (series_) series_->quantized_layers.Set(static_cast<double>(count));
}

}  // namespace lockstep::metrics
