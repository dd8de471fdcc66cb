#include "optim/fused.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/full.h>

namespace lockstep::optim {
namespace {

void fused_sgd(const at::Tensor& values, const at::Tensor& grads,
               const std::vector<at::Tensor>& slots, const OptimizerOptions& options,
               const GroupRates& rates) {
  const rules::WeightDecay<double> decay(options, rates);
  if (decay.minus_share != 0) values.mul_(1 + decay.minus_share);
  at::_fused_sgd_(values, grads, slots, decay.l2, slots.empty() ? 0 : options.momentum,
                  rates.learning_rate, /*dampening=*/0.0, !slots.empty() && options.nesterov,
                  /*maximize=*/false, /*is_first_step=*/false);
}

}  // namespace

void FusedSgd::update_tensors(const at::Tensor& values, const at::Tensor& grads,
                              std::vector<at::Tensor>& slots, const GroupRates& rates) {
  fused_sgd(values, grads, slots, options(), rates);
}

void FusedMomentum::update_tensors(const at::Tensor& values, const at::Tensor& grads,
                                   std::vector<at::Tensor>& slots, const GroupRates& rates) {
  fused_sgd(values, grads, slots, options(), rates);
}

void FusedAdam::update_tensors(const at::Tensor& values, const at::Tensor& grads,
                               std::vector<at::Tensor>& slots, const GroupRates& rates) {
  const rules::WeightDecay<double> decay(options(), rates);
  const rules::Adam<double> rule(options(), rates, num_updates());
  if (decay.minus_share != 0) values.mul_(1 + decay.minus_share);
  const at::Tensor update_number =
      at::full({}, static_cast<double>(num_updates()), values.options().dtype(at::kFloat));
  at::_fused_adam_(values, grads, slots[0], slots[1], /*max_exp_avg_sqs=*/at::TensorList(),
                   update_number, rates.learning_rate, options().adam_beta1, options().adam_beta2,
                   decay.l2, rule.epsilon, /*amsgrad=*/false, /*maximize=*/false);
}

}  // namespace lockstep::optim
