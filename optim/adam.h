#pragma once

#include "optim/optimizer.h"

namespace lockstep::optim {

/// m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g²;  w -= rate * sqrt(1 - b2^t) / (1 - b1^t) * m /
/// (sqrt(v) + epsilon). Source: Kingma & Ba 2015, the form before section 2.1's bias-corrected
/// variables, as tf.compat.v1.train.AdamOptimizer has it: epsilon is added to the uncorrected root.
class Adam final : public Optimizer {
 public:
  Adam(const OptimizerOptions& options, std::vector<FlatBuffer>& buffers, const ParamTable& params);
  void step(double learning_rate) override;
  StateList state() override;

 private:
  OptimizerOptions options_;
  std::vector<FlatBuffer>& buffers_;
  const ParamTable& params_;
  std::vector<at::Tensor> first_moments_;   // [E] a buffer
  std::vector<at::Tensor> second_moments_;  // [E] a buffer
  at::Tensor update_number_;                // float32 scalar, as the fused kernel wants it
  int64_t num_updates_ = 0;
};

}  // namespace lockstep::optim
