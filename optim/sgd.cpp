#include "optim/sgd.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_sgd.h>

#include "optim/slots.h"

namespace lockstep::optim {

Sgd::Sgd(const OptimizerOptions& options, std::vector<FlatBuffer>& buffers,
         const ParamTable& params)
    : options_(options), buffers_(buffers), params_(params) {
  if (options_.type == "sgd") options_.momentum = 0;
  if (options_.momentum > 0) momentum_ = zeros_beside(buffers);
}

void Sgd::step(double learning_rate) {
  const at::NoGradGuard no_grad;
  for (size_t b = 0; b < buffers_.size(); ++b) {
    const at::TensorList momentum =
        momentum_.empty() ? at::TensorList() : at::TensorList(momentum_[b]);
    at::_fused_sgd_(
        buffers_[b].values_E, buffers_[b].grads_E, momentum,
        buffers_[b].decayed ? options_.weight_decay : 0.0, options_.momentum, learning_rate,
        /*dampening=*/0.0, options_.nesterov, /*maximize=*/false, /*is_first_step=*/false);
  }
  ++num_updates_;
}

StateList Sgd::state() {
  StateList list{{"optimizer/iterations", view_of(&num_updates_), nullptr}};
  if (!momentum_.empty()) list_slot("momentum", momentum_, buffers_, params_, &list);
  return list;
}

}  // namespace lockstep::optim
