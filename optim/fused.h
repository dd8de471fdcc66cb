#pragma once

#include <vector>

#include "optim/elementwise.h"

/// Rules for which ATen has a fused kernel: it is taken where no kernel of ours goes.
namespace lockstep::optim {

class FusedSgd final : public Elementwise<rules::Sgd> {
  using Elementwise::Elementwise;
  void update_tensors(const at::Tensor& values, const at::Tensor& grads,
                      std::vector<at::Tensor>& slots, const GroupRates& rates) override;
};

class FusedMomentum final : public Elementwise<rules::Momentum> {
  using Elementwise::Elementwise;
  void update_tensors(const at::Tensor& values, const at::Tensor& grads,
                      std::vector<at::Tensor>& slots, const GroupRates& rates) override;
};

/// adam and adamw.
class FusedAdam final : public Elementwise<rules::Adam> {
  using Elementwise::Elementwise;
  void update_tensors(const at::Tensor& values, const at::Tensor& grads,
                      std::vector<at::Tensor>& slots, const GroupRates& rates) override;
};

}  // namespace lockstep::optim
