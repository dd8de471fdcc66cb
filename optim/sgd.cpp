#include "optim/sgd.h"

#include <ATen/ops/_fused_sgd.h>

#include "optim/dense_split.h"
#include "optim/packed_update.h"

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

MomentumNumbers Sgd::numbers(const GroupRates& rates) const {
  return {.weight_decay = static_cast<float>(rates.weight_decay),
          .momentum = static_cast<float>(momentum_),
          .minus_rate = static_cast<float>(-rates.learning_rate),
          .nesterov = nesterov_};
}

void Sgd::update(const FlatBuffer& buffer, SlotPart* part, const GroupRates& rates) {
  if (part->is_packed())
    return packed_momentum(part->kept, data_of(buffer, part->region),
                           floats_of(part->slots[kMomentum]), numbers(rates));
  const DenseSplit split(buffer, part->region);
  const bool has_slot = !part->slots.empty();
  if (split.num_even > 0) {
    const at::Tensor momentum =
        has_slot ? part->slots[kMomentum].narrow(0, 0, split.num_even) : at::Tensor();
    at::_fused_sgd_(split.even(buffer.values_E), split.even(buffer.grads_E),
                    has_slot ? at::TensorList(momentum) : at::TensorList(), rates.weight_decay,
                    momentum_, rates.learning_rate, /*dampening=*/0.0, nesterov_,
                    /*maximize=*/false, /*is_first_step=*/false);
  }
  if (split.num_rest > 0)
    momentum_of_rest(split.num_rest, split.rest(buffer),
                     has_slot ? floats_of(part->slots[kMomentum]) + split.num_even : nullptr,
                     numbers(rates));
}

}  // namespace lockstep::optim
