#include "optim/adam.h"

#include <cmath>

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/zeros.h>

#include "optim/dense_split.h"
#include "optim/packed_update.h"

namespace lockstep::optim {
namespace {

constexpr size_t kFirst = 0, kSecond = 1;

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

void Adam::begin_step() {
  update_number_.fill_(static_cast<double>(num_updates()));
  const auto t = static_cast<double>(num_updates());
  first_correction_ = 1 - std::pow(beta1_, t);
  root_scale_ = std::sqrt(1 - std::pow(beta2_, t));
}

AdamNumbers Adam::numbers(const GroupRates& rates) const {
  return {.weight_decay = static_cast<float>(rates.weight_decay),
          .first_share = static_cast<float>(1 - beta1_),
          .second_decay = static_cast<float>(beta2_),
          .second_share = static_cast<float>(1 - beta2_),
          .root_scale = static_cast<float>(root_scale_),
          .epsilon = static_cast<float>(corrected_epsilon()),
          .minus_rate = static_cast<float>(-rates.learning_rate / first_correction_)};
}

void Adam::update(const FlatBuffer& buffer, SlotPart* part, const GroupRates& rates) {
  if (part->is_packed())
    return packed_adam(part->kept, data_of(buffer, part->region), floats_of(part->slots[kFirst]),
                       floats_of(part->slots[kSecond]), numbers(rates));
  const DenseSplit split(buffer, part->region);
  if (split.num_even > 0)
    at::_fused_adam_(split.even(buffer.values_E), split.even(buffer.grads_E),
                     part->slots[kFirst].narrow(0, 0, split.num_even),
                     part->slots[kSecond].narrow(0, 0, split.num_even),
                     /*max_exp_avg_sqs=*/at::TensorList(), update_number_, rates.learning_rate,
                     beta1_, beta2_, rates.weight_decay, corrected_epsilon(),
                     /*amsgrad=*/false, /*maximize=*/false);
  if (split.num_rest > 0)
    adam_of_rest(split.num_rest, split.rest(buffer),
                 floats_of(part->slots[kFirst]) + split.num_even,
                 floats_of(part->slots[kSecond]) + split.num_even, numbers(rates));
}

}  // namespace lockstep::optim
