#pragma once

#include <vector>

#include <ATen/TensorOperators.h>

#include "optim/kernels/update_region.h"
#include "optim/optimizer.h"

namespace lockstep::optim {

/// Optimizer with an elementwise rule (optim/rules): own kernels for float32 on the CPU, otherwise
/// the same rule in ATen's operations.
template <template <typename> class Rule>
class Elementwise : public Optimizer {
 public:
  Elementwise(const OptimizerOptions& options, std::vector<FlatBuffer>& buffers,
              const ParamTable& params)
      : Optimizer(options, buffers, params) {
    for (const char* slot : Rule<float>::kSlots) add_slot(slot);
  }

 protected:
  /// Updates tensors of [R] elements each. The default applies the rule in ATen's operations, each
  /// of which creates a tensor. An override may postpone the update to end_step().
  virtual void update_tensors(const at::Tensor& values, const at::Tensor& grads,
                              std::vector<at::Tensor>& slots, const GroupRates& rates) {
    const rules::WeightDecay<double> decay(options(), rates);
    slots.resize(2);
    at::Tensor first = slots[0], second = slots[1];
    const at::Tensor result =
        rules::apply(Rule<double>(options(), rates, num_updates()),
                     decay.minus_share == 0 ? values : values.add(values, decay.minus_share),
                     decay.l2 == 0 ? grads : grads.add(values, decay.l2), &first, &second, 0);
    slots.resize(Rule<float>::kSlots.size());
    if (!slots.empty()) slots[0].copy_(first);
    if (slots.size() > 1) slots[1].copy_(second);
    values.copy_(result);
  }

  void update(const FlatBuffer& buffer, SlotPart* part, const GroupRates& rates) override {
    if constexpr (requires { Rule<float>::kDividesByRate; })
      if (rates.learning_rate == 0) return;
    if (takes_kernels(buffer))
      return update_region(part->kept, data_of(buffer, part->region), data_of(part->slots),
                           rules::WeightDecay<float>(options(), rates),
                           Rule<float>(options(), rates, num_updates()));
    update_tensors(part->of(buffer.values_E), part->of(buffer.grads_E), part->slots, rates);
  }
};

}  // namespace lockstep::optim
