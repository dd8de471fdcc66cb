#include "optim/adam.h"

#include <cmath>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/zeros.h>

namespace lockstep::optim {
namespace {

constexpr size_t kFirstMoment = 0, kSecondMoment = 1;

}  // namespace

Adam::Adam(const OptimizerOptions& options, std::vector<FlatBuffer>& buffers,
           const ParamTable& params)
    : Optimizer(buffers, params),
      beta1_(options.adam_beta1),
      beta2_(options.adam_beta2),
      epsilon_(options.opt_epsilon),
      update_number_(at::zeros({}, buffers.at(0).values_E.options().dtype(at::kFloat))) {
  add_slot("m");
  add_slot("v");
}

void Adam::step(const StepRates& rates) {
  const at::NoGradGuard no_grad;
  ++num_updates_;
  update_number_.fill_(static_cast<double>(num_updates_));
  // The kernel adds epsilon to the corrected root; this epsilon gives the sum that TensorFlow has.
  const double epsilon =
      epsilon_ / std::sqrt(1 - std::pow(beta2_, static_cast<double>(num_updates_)));
  for (size_t b = 0; b < buffers_.size(); ++b) {
    const FlatBuffer& buffer = buffers_[b];
    if (buffer.frozen) continue;
    const GroupRates& group = rates[static_cast<size_t>(buffer.group)];
    at::_fused_adam_(buffer.values_E, buffer.grads_E, slot(kFirstMoment, b), slot(kSecondMoment, b),
                     /*max_exp_avg_sqs=*/at::TensorList(), update_number_, group.learning_rate,
                     beta1_, beta2_, group.weight_decay, epsilon,
                     /*amsgrad=*/false, /*maximize=*/false);
  }
}

}  // namespace lockstep::optim
