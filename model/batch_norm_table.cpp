#include "model/batch_norm_table.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

namespace lockstep::model {
namespace {

/// (1 - kKept) of the way to the new value, in float64 and rounded once.
void move_towards(const at::Tensor& goal_C, const at::Tensor& moving_C) {
  const at::Tensor before_C = moving_C.to(at::kDouble);
  moving_C.copy_(before_C.add(goal_C - before_C, 1 - BatchNormTable::kKept));
}

}  // namespace

BatchNormState& BatchNormTable::add(int64_t num_channels) {
  states_.push_back(std::make_unique<BatchNormState>(
      BatchNormState{.moving_mean_C = at::zeros({num_channels}),
                     .moving_variance_C = at::ones({num_channels}),
                     .num_batches = at::zeros({}, at::kLong),
                     .seen_K = at::zeros({1 + 2 * num_channels}, at::kDouble)}));
  return *states_.back();
}

void BatchNormTable::move_to(at::Device device) {
  for (const auto& state : states_)
    for (at::Tensor* tensor :
         {&state->moving_mean_C, &state->moving_variance_C, &state->num_batches, &state->seen_K})
      tensor->set_data(tensor->to(device));
}

void BatchNormTable::note(double num_samples, const at::Tensor& mean_C,
                          const at::Tensor& variance_C, BatchNormState* state) {
  const at::NoGradGuard no_grad;
  const int64_t num_channels = mean_C.numel();
  state->seen_K.narrow(0, 0, 1).add_(num_samples);
  state->seen_K.narrow(0, 1, num_channels).add_(mean_C.to(at::kDouble), num_samples);
  state->seen_K.narrow(0, 1 + num_channels, num_channels)
      .add_(variance_C.to(at::kDouble), num_samples);
}

at::Tensor BatchNormTable::take_seen() {
  std::vector<at::Tensor> all;
  for (const auto& state : states_) all.push_back(state->seen_K);
  at::Tensor seen_K = all.empty() ? at::zeros({0}, at::kDouble) : at::cat(all);
  for (const auto& state : states_) state->seen_K.zero_();
  return seen_K;
}

void BatchNormTable::update(const at::Tensor& seen_K) {
  const at::NoGradGuard no_grad;
  int64_t begin = 0;
  for (const auto& state : states_) {
    const at::Tensor own_K = seen_K.narrow(0, begin, state->seen_K.numel());
    begin += state->seen_K.numel();
    const auto num_samples = own_K[0].item<double>();
    if (num_samples == 0) continue;
    const int64_t num_channels = state->moving_mean_C.numel();
    move_towards(own_K.narrow(0, 1, num_channels) / num_samples, state->moving_mean_C);
    move_towards(own_K.narrow(0, 1 + num_channels, num_channels) / num_samples,
                 state->moving_variance_C);
    state->num_batches.add_(1);
  }
}

}  // namespace lockstep::model
