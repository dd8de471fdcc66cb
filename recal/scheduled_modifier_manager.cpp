#include "recal/scheduled_modifier_manager.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "dist/replica_check.h"

namespace lockstep::recal {
namespace {

std::vector<int64_t> covered_params(const Timeline& timeline) {
  std::set<int64_t> covered;
  for (const ParamSet& set : timeline.param_sets())
    covered.insert(set.params.begin(), set.params.end());
  return {covered.begin(), covered.end()};
}

void sort_unique(std::vector<int64_t>* values) {
  std::sort(values->begin(), values->end());
  values->erase(std::unique(values->begin(), values->end()), values->end());
}

double fraction(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

}  // namespace

ScheduledModifierManager ScheduledModifierManager::from_yaml(const std::string& path) {
  Faults faults;
  Recipe recipe = Recipe::load(path, &faults);
  faults.throw_if_any("recal");
  return ScheduledModifierManager(std::move(recipe));
}

void ScheduledModifierManager::attach(const ParamTable& params, int64_t steps_per_epoch,
                                      double base_learning_rate, Faults* faults,
                                      std::optional<int64_t> max_steps) {
  check(!timeline_, "the recipe's manager is attached twice");
  if (params.empty())
    throw Error(ExitCode::kConfig, "recal", "the model has no parameters for a recipe to work on");
  const TimelineInputs inputs{.steps_per_epoch = steps_per_epoch,
                              .base_learning_rate = base_learning_rate,
                              .params = param_infos(params),
                              .max_steps = max_steps};
  timeline_ = Timeline::compile(recipe_, inputs, faults);
  masks_ = MaskTable(params, covered_params(*timeline_));
  for (const Param& param : params) {
    if (!param.prunable) continue;
    prunable_.push_back(param);
    num_prunable_weights_ += param.tensor.numel();
  }
}

const Timeline& ScheduledModifierManager::timeline() const {
  check(timeline_.has_value(), "the recipe's manager is not attached");
  return *timeline_;
}

void ScheduledModifierManager::apply(const Action& action, Applied* applied) {
  if (action.kind == ActionKind::kSetLearningRate) return;  // read from the timeline
  for (const int64_t param :
       timeline_->param_sets()[static_cast<size_t>(action.param_set)].params) {
    bool changed = false;
    if (action.kind == ActionKind::kPrune) changed = masks_.prune(param, action.value);
    if (action.kind == ActionKind::kKeepZeros) changed = masks_.keep_zeros(param);
    // Zeroed before it is let go, so that a closing sparsity at the same step is seen in the
    // weights.
    if (action.kind == ActionKind::kRelease) {
      masks_.enforce(param);
      changed = masks_.release(param);
    }
    if (changed) applied->changed_params.push_back(param);
    ++applied->num_mask_updates;
  }
}

Applied ScheduledModifierManager::apply_due(int64_t step, dist::Communicator& control) {
  Applied applied;
  applied.learning_rate = timeline().learning_rate_at(step);
  if (!std::exchange(masks_counted_, true)) masks_.recount();
  // Every mask that was computed is compared, also where this rank saw no change: a rank that
  // differs may.
  std::vector<int64_t> touched;
  for (const Action& action : timeline_->due_at(step)) {
    if (action.kind == ActionKind::kSetLearningRate) continue;
    apply(action, &applied);
    const std::vector<int64_t>& params =
        timeline_->param_sets()[static_cast<size_t>(action.param_set)].params;
    // A later action of this step may hide what this one made, so each action's masks are compared.
    require_equal_masks(fmt::format("the new mask at step {}", step), params, control);
    touched.insert(touched.end(), params.begin(), params.end());
  }
  if (touched.empty()) return applied;
  sort_unique(&touched);
  for (const int64_t param : touched) masks_.enforce(param);
  sort_unique(&applied.changed_params);
  applied.masks_changed = !applied.changed_params.empty();
  return applied;
}

Applied ScheduledModifierManager::finalize(int64_t step, dist::Communicator& control) {
  Applied applied = apply_due(step, control);
  enforce();
  return applied;
}

void ScheduledModifierManager::require_equal_masks(std::string_view what,
                                                   const std::vector<int64_t>& params,
                                                   dist::Communicator& control) {
  std::vector<dist::NamedTensor> tensors;
  for (const int64_t param : params)
    tensors.push_back({masks_.of(param).name, masks_.of(param).kept});
  dist::require_equal_replicas(control, what, tensors);
}

void ScheduledModifierManager::restored(dist::Communicator& control) {
  masks_.recount();
  masks_counted_ = true;
  std::vector<int64_t> params;
  for (const Mask& mask : masks_.all()) params.push_back(mask.param);
  require_equal_masks("the restored mask", params, control);
  enforce();
}

double ScheduledModifierManager::covered_sparsity() const {
  int64_t num_pruned = 0;
  int64_t num_weights = 0;
  for (const Mask& mask : masks_.all()) {
    num_pruned += mask.num_pruned;
    num_weights += mask.kept.numel();
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
  for (const Param& param : prunable_) {
    const int64_t num_weights = param.tensor.numel();
    result.push_back({param.name, num_weights, 0,
                      num_weights - param.tensor.detach().count_nonzero().item<int64_t>()});
    for (const Mask& mask : masks_.all())
      if (mask.name == param.name) result.back().num_pruned = mask.num_pruned;
  }
  return result;
}

}  // namespace lockstep::recal
