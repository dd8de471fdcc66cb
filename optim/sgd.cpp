#include "optim/sgd.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_sgd.h>

namespace lockstep::optim {
namespace {

constexpr size_t kMomentum = 0;

}  // namespace

Sgd::Sgd(const OptimizerOptions& options, std::vector<FlatBuffer>& buffers,
         const ParamTable& params)
    : Optimizer(buffers, params),
      momentum_(options.type == "sgd" ? 0 : options.momentum),
      nesterov_(momentum_ > 0 && options.nesterov) {
  if (momentum_ > 0) add_slot("momentum");
}

void Sgd::step(const StepRates& rates) {
  const at::NoGradGuard no_grad;
  for (size_t b = 0; b < buffers_.size(); ++b) {
    const FlatBuffer& buffer = buffers_[b];
    if (buffer.frozen) continue;
    const GroupRates& group = rates[static_cast<size_t>(buffer.group)];
    const at::TensorList momentum =
        momentum_ > 0 ? at::TensorList(slot(kMomentum, b)) : at::TensorList();
    at::_fused_sgd_(buffer.values_E, buffer.grads_E, momentum, group.weight_decay, momentum_,
                    group.learning_rate, /*dampening=*/0.0, nesterov_, /*maximize=*/false,
                    /*is_first_step=*/false);
  }
  ++num_updates_;
}

}  // namespace lockstep::optim
