#include "train/step/apply_recipe.h"

#include <string>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/simd/bit_mask.h"
#include "dist/collectives.h"
#include "dist/reducer/buckets.h"

namespace lockstep::train {

optim::StepRates RateSchedule::at(int64_t step) const {
  optim::StepRates rates = optim::initial_rates(options_);
  const double own_rate = optim::decayed_rate(options_.decay, options_.learning_rate, step,
                                              timeline_.steps_per_epoch(), total_steps_);
  for (int group = 0; group < kNumParamGroups; ++group) {
    optim::GroupRates& rate = rates[static_cast<size_t>(group)];
    rate.learning_rate =
        // A recipe that sets the learning rate replaces the optimizer's schedule completely.
        timeline_.sets_learning_rate() ? timeline_.learning_rate_at(step, group) : own_rate;
    if (const std::optional<double> decay = timeline_.weight_decay_at(step, group))
      rate.weight_decay = *decay;
  }
  return rates;
}

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

std::vector<uint8_t> kept_bits_of(const FlatBuffer& buffer, const recal::MaskTable& masks) {
  std::vector<uint8_t> bits;
  for (const FlatSlice& slice : buffer.slices) {
    if (!masks.covers(slice.param)) continue;
    const recal::Mask& mask = masks.of(slice.param);
    // Empty bits mean "all kept", which costs nothing later.
    if (mask.num_pruned == 0) continue;
    if (bits.empty()) {
      const int64_t num_elements = buffer.values_E.numel();
      bits.resize(static_cast<size_t>(num_mask_bytes(num_elements)));
      keep_all(bits.data(), num_elements);
    }
    copy_bits(mask.kept_bits.const_data_ptr<uint8_t>(), 0, slice.num_elements, bits.data(),
              slice.offset_E);
  }
  return bits;
}

void tell_layers(const recal::MaskTable& masks, const ParamTable& params) {
  for (size_t i = 0; i < params.size(); ++i) {
    if (!params[i].follow_mask) continue;
    const auto param = static_cast<int64_t>(i);
    const bool is_pruned = masks.covers(param) && masks.of(param).num_pruned > 0;
    params[i].follow_mask(is_pruned ? masks.of(param).kept_bits.const_data_ptr<uint8_t>()
                                    : nullptr);
  }
}

void set_masks(const recal::MaskTable& masks, const std::vector<FlatBuffer>& buffers,
               bool adds_squares, dist::GradientReducer& reducer, optim::Optimizer& optimizer) {
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].frozen) continue;
    const std::vector<uint8_t> bits = kept_bits_of(buffers[i], masks);
    optimizer.set_kept(i, bits);
    // The optimizer may read all gradients, and a norm reads all: then dropped ones must be 0.
    const bool needs_zeros = adds_squares || !optimizer.reads_kept_alone(i);
    reducer.set_kept(i, bits, needs_zeros ? dist::Dropped::kZero : dist::Dropped::kAnything);
  }
}

}  // namespace lockstep::train
