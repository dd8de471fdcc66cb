#include "train/gradients/training_pass.h"

#include <ATen/TensorOperators.h>

#include "base/trace/trace_span.h"
#include "data/sampler.h"
#include "train/gradients/autocast.h"
#include "train/gradients/stopwatch.h"

namespace lockstep::train {
namespace {

void add(const at::Tensor& loss, HostWaits waits, LossSum* sum) {
  if (waits == HostWaits::kForLosses)
    sum->here += loss.item<double>();
  else
    sum->there = sum->there.defined() ? sum->there + loss.detach() : loss.detach().to(at::kDouble);
}

}  // namespace

LossSum TrainingPass::run(const PassInputs& inputs,
                          const std::optional<dist::StepRequests>& completes, HostWaits waits,
                          metrics::PhaseSeconds* phases) {
  parts_.flat_params.zero_grads();
  LossSum loss_sum;
  const int64_t num_parts = parts_.num_micro_batches;
  for (int64_t part = 0; part < num_parts; ++part) {
    const bool is_last = completes && part + 1 == num_parts;  // its gradients complete the update
    const data::Shard share = data::shard_of(inputs.targets_BY.size(0), part, num_parts);
    // Without samples a rank skips the pass, unless other ranks wait for its sums in forward.
    if (share.size() == 0 && !parts_.statistics.needs_every_rank()) {
      if (is_last) parts_.reducer.prepare_for_backward(*completes);
      continue;
    }
    Stopwatch watch;
    const at::Tensor loss = sum_of_losses(inputs.inputs_BX.narrow(0, share.begin, share.size()),
                                          inputs.targets_BY.narrow(0, share.begin, share.size()),
                                          inputs.first_sample + share.begin);
    phases->forward += watch.lap();
    if (is_last) parts_.reducer.prepare_for_backward(*completes);
    if (waits != HostWaits::kForNothing) parts_.reducer.settle();
    phases->allreduce += watch.lap();
    backward(loss, inputs.weight);
    add(loss, waits, &loss_sum);
    phases->backward += watch.lap();
  }
  // After all micro-batches: gradients that no layer wrote are still marked as stale.
  parts_.flat_params.zero_unwritten_grads();
  if (parts_.model.runs_user_code()) parts_.flat_params.require_views();
  return loss_sum;
}

void TrainingPass::backward(const at::Tensor& loss, const at::Tensor& weight) {
  const trace::Span span("backward");
  // A branch may leave out all trained parameters: then backward reaches nothing, as in
  // torch.optim.
  if (!loss.requires_grad() && parts_.model.runs_user_code()) return parts_.model.after_backward();
  // Before backward: it tells which gradients have a single source and may leave early.
  parts_.reducer.follow_graph(loss);
  try {
    loss.backward(weight);
  } catch (const std::exception&) {
    parts_.model.after_backward();  // throws the network's own error if its code raised one
    throw;
  }
  parts_.model.after_backward();
}

at::Tensor TrainingPass::sum_of_losses(const at::Tensor& inputs_BX, const at::Tensor& targets_BY,
                                       int64_t first_sample) {
  const trace::Span span("forward");
  parts_.model.begin_forward({.step = parts_.clock.step, .first_sample = first_sample});
  at::Tensor outputs_BO, own_loss;
  if (parts_.watch != nullptr) parts_.watch->before_forward();
  {
    const Autocast autocast(parts_.precision, inputs_BX.device());
    if (parts_.loss.is_own())
      own_loss = parts_.model.own_loss(inputs_BX, targets_BY);
    else
      outputs_BO = parts_.model.forward(inputs_BX);
  }
  if (parts_.watch != nullptr) parts_.watch->after_forward();
  if (parts_.tensors != nullptr) parts_.tensors->add_outputs(outputs_BO);
  if (outputs_BO.defined()) return parts_.loss.sum(outputs_BO, targets_BY);
  // own_loss() is a mean over the samples.
  return own_loss.to(at::kFloat).mul(static_cast<double>(inputs_BX.size(0)));
}

}  // namespace lockstep::train
