// Calls of ATen's fused kernels. found_inf is a tensor on the device: the kernel skips the update
// if it is 1, without a wait of the host.
#include "optim/fused.h"

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/full.h>

namespace lockstep::optim {
namespace {

void decay_values(const FusedBatch& batch, const rules::WeightDecay<double>& decay) {
  if (decay.minus_share == 0) return;
  // The skip happens on the device, so the factor becomes 1 there if found_inf is set.
  if (!batch.found_inf) return at::_foreach_mul_(batch.values, 1 + decay.minus_share);
  const at::Tensor factor = at::full({}, 1 + decay.minus_share, batch.values.front().options());
  at::_foreach_mul_(batch.values, factor.masked_fill_(batch.found_inf->squeeze().ne(0), 1));
}

void fused_sgd(const FusedBatch& batch, const OptimizerOptions& options) {
  const rules::WeightDecay<double> decay(options, *batch.rates);
  decay_values(batch, decay);
  const bool has_momentum = !batch.slots.empty();
  at::_fused_sgd_(batch.values, batch.grads,
                  has_momentum ? at::TensorList(batch.slots[0]) : at::TensorList(), decay.l2,
                  has_momentum ? options.momentum : 0, batch.rates->learning_rate,
                  /*dampening=*/0.0, has_momentum && options.nesterov,
                  /*maximize=*/false, /*is_first_step=*/false, /*grad_scale=*/{}, batch.found_inf);
}

}  // namespace

void FusedSgd::update_batch(const FusedBatch& batch) { fused_sgd(batch, options()); }

void FusedMomentum::update_batch(const FusedBatch& batch) { fused_sgd(batch, options()); }

void FusedAdam::update_batch(const FusedBatch& batch) {
  const rules::WeightDecay<double> decay(options(), *batch.rates);
  const rules::Adam<double> rule(options(), *batch.rates, batch.num_updates);
  decay_values(batch, decay);
  // ATen takes the update number as a tensor for each parameter.
  const at::Tensor update_number = at::full({}, static_cast<double>(batch.num_updates),
                                            batch.values.front().options().dtype(at::kFloat));
  const std::vector<at::Tensor> update_numbers(batch.values.size(), update_number);
  at::_fused_adam_(batch.values, batch.grads, batch.slots[0], batch.slots[1],
                   /*max_exp_avg_sqs=*/at::TensorList(), update_numbers, batch.rates->learning_rate,
                   options().adam_beta1, options().adam_beta2, decay.l2, rule.epsilon,
                   /*amsgrad=*/false, /*maximize=*/false, /*grad_scale=*/{}, batch.found_inf);
}

}  // namespace lockstep::optim
