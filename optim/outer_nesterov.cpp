#include "optim/outer_nesterov.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include "base/tensors/large_pages.h"
#include "optim/kernels/update_kernels.h"

namespace lockstep::optim {
namespace {

template <typename N>
rules::Momentum<N> rule_of(const OuterOptions& options) {
  OptimizerOptions as_optimizer;
  as_optimizer.momentum = options.momentum;
  as_optimizer.nesterov = true;
  return {as_optimizer, GroupRates{.learning_rate = options.learning_rate}, /*num_updates=*/1};
}

/// A kernel of ours, as ATen's rounds the last elements of each thread in another way.
void move_floats(const at::Tensor& values, const at::Tensor& grads, const at::Tensor& momentum,
                 const rules::Momentum<float>& rule) {
  float* const value = values.mutable_data_ptr<float>();
  float* const grad = grads.mutable_data_ptr<float>();
  float* const slot = momentum.mutable_data_ptr<float>();
  const auto update = update_kernels(fastest_simd_path()).of<rules::Momentum<float>>();
  at::parallel_for(0, values.numel(), kGrain, [=, &rule](int64_t begin, int64_t end) {
    update(end - begin, value + begin, grad + begin, slot + begin, nullptr, {}, rule);
  });
}

at::Tensor zeros_for(const at::Tensor& weight) {
  return zeros_on_large_pages(weight.numel(), weight.options()).view(weight.sizes());
}

}  // namespace

OuterNesterov::OuterNesterov(std::optional<OuterOptions> options, ParamTable& params)
    : options_(options), params_(params) {
  if (!is_on()) return;
  for (const Param& param : params_) {
    const at::Tensor weight = param.tensor.detach();
    starts_.push_back(zeros_for(weight));
    momentum_.push_back(zeros_for(weight));
  }
  begin_round();
}

void OuterNesterov::begin_round() {
  if (!is_on()) return;
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < params_.size(); ++i) starts_[i].copy_(params_[i].tensor);
}

void OuterNesterov::step(const std::vector<int64_t>& params) {
  if (!is_on()) return;
  const at::NoGradGuard no_grad;
  for (const int64_t param : params) step_of(static_cast<size_t>(param));
}

/// The gradient takes the mean's place, and the new weights that of the start.
void OuterNesterov::step_of(size_t param) {
  const at::Tensor weight = params_[param].tensor.detach();
  const at::Tensor &start = starts_[param], &slot = momentum_[param];
  weight.neg_().add_(start);
  if (weight.is_cpu() && weight.scalar_type() == at::kFloat) {
    move_floats(start, weight, slot, rule_of<float>(*options_));
  } else {
    at::Tensor momentum = slot;
    start.copy_(rule_of<double>(*options_)(start, weight, momentum));
    slot.copy_(momentum);
  }
  weight.copy_(start);
}

at::Tensor OuterNesterov::momentum_of(int64_t param) const {
  return is_on() ? momentum_.at(static_cast<size_t>(param)) : at::Tensor();
}

StateList OuterNesterov::state() {
  StateList list;
  for (size_t i = 0; i < momentum_.size(); ++i)
    list.push_back({.key = "optimizer/" + slashed(params_[i].name) + "/outer_momentum",
                    .tensor = momentum_[i],
                    .value_if_missing = 0.0,
                    .steady = true});
  return list;
}

}  // namespace lockstep::optim
