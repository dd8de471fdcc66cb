#pragma once

#include "optim/optimizer.h"

namespace lockstep::optim {

/// m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g²;  w -= rate * sqrt(1 - b2^t) / (1 - b1^t) * m /
/// (sqrt(v) + epsilon). Source: Kingma & Ba 2015, the form before section 2.1's bias-corrected
/// variables, as tf.compat.v1.train.AdamOptimizer has it: epsilon is added to the uncorrected root.
class Adam final : public Optimizer {
 public:
  Adam(const OptimizerOptions& options, std::vector<FlatBuffer>& buffers, const ParamTable& params);
  void step(const StepRates& rates) override;

 private:
  double beta1_, beta2_, epsilon_;
  at::Tensor update_number_;  // float32 scalar, as the fused kernel wants it
};

}  // namespace lockstep::optim
