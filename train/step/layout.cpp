#include "train/step/layout.h"

#include <string>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "dist/agree.h"
#include "dist/bucket/bucket_plan.h"

namespace lockstep::train {
namespace {

std::string plan_text(const optim::BufferPlan& plan, const std::vector<bool>& trainable) {
  std::string text;
  for (const std::vector<int64_t>& members : plan)
    text += fmt::format("{} {}; ",
                        trainable[static_cast<size_t>(members.front())] ? "trainable" : "frozen",
                        fmt::join(members, " "));
  return text;
}

/// Returns equal numbers for parameters that may share a buffer.
int64_t buffer_kind(const Param& param, bool trainable) {
  const auto dtype = static_cast<int64_t>(param.tensor.scalar_type());
  return (dtype * 2 + (trainable ? 0 : 1)) * kNumParamGroups + group_of(param);
}

}  // namespace

optim::BufferPlan plan_layout(const ParamTable& params, const std::vector<bool>& trainable,
                              int64_t bucket_bytes) {
  std::vector<dist::PlannedParam> planned;
  for (size_t i = 0; i < params.size(); ++i)
    planned.push_back({.num_bytes = static_cast<int64_t>(params[i].tensor.nbytes()),
                       .group = buffer_kind(params[i], trainable[i])});
  return dist::plan_buckets(planned, bucket_bytes);
}

void flatten_for(const std::vector<bool>& trainable, int64_t bucket_bytes,
                 optim::FlatParams& flat_params, optim::Optimizer& optimizer,
                 dist::Communicator& control) {
  const optim::BufferPlan plan = plan_layout(flat_params.params(), trainable, bucket_bytes);
  // Different plans would mix gradients of different parameters in one message.
  dist::require_equal(control, "the buffer plan", plan_text(plan, trainable));
  optimizer.rebuild(flat_params.flatten(plan, trainable));
}

void apply_recipe_changes(const recal::Applied& due, const recal::ScheduledModifierManager& recipe,
                          int64_t bucket_bytes, optim::FlatParams& flat_params,
                          optim::Optimizer& optimizer, dist::Communicator& control) {
  const at::NoGradGuard no_grad;
  for (const int64_t param : due.changed_params)
    // Masks before layout: slots_of() refers to the present buffers.
    for (const at::Tensor& slot : optimizer.slots_of(param)) recipe.zero_pruned(param, slot);
  for (const int64_t param : due.reset_params) optimizer.reset_momentum(param);
  if (due.trainable) flatten_for(*due.trainable, bucket_bytes, flat_params, optimizer, control);
}

}  // namespace lockstep::train
