#include "optim/adam.h"

#include <cmath>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/zeros.h>

#include "optim/slots.h"

namespace lockstep::optim {

Adam::Adam(const OptimizerOptions& options, std::vector<FlatBuffer>& buffers,
           const ParamTable& params)
    : options_(options),
      buffers_(buffers),
      params_(params),
      first_moments_(zeros_beside(buffers)),
      second_moments_(zeros_beside(buffers)),
      update_number_(at::zeros({}, buffers.at(0).values_E.options().dtype(at::kFloat))) {}

void Adam::step(double learning_rate) {
  const at::NoGradGuard no_grad;
  ++num_updates_;
  update_number_.fill_(static_cast<double>(num_updates_));
  // The kernel adds epsilon to the corrected root; this epsilon gives the sum that TensorFlow has.
  const double epsilon =
      options_.opt_epsilon /
      std::sqrt(1 - std::pow(options_.adam_beta2, static_cast<double>(num_updates_)));
  for (size_t b = 0; b < buffers_.size(); ++b) {
    at::_fused_adam_(
        buffers_[b].values_E, buffers_[b].grads_E, first_moments_[b], second_moments_[b],
        /*max_exp_avg_sqs=*/at::TensorList(), update_number_, learning_rate, options_.adam_beta1,
        options_.adam_beta2, buffers_[b].decayed ? options_.weight_decay : 0.0, epsilon,
        /*amsgrad=*/false, /*maximize=*/false);
  }
}

StateList Adam::state() {
  StateList list{{"optimizer/iterations", view_of(&num_updates_), nullptr}};
  list_slot("m", first_moments_, buffers_, params_, &list);
  list_slot("v", second_moments_, buffers_, params_, &list);
  return list;
}

}  // namespace lockstep::optim
