#pragma once

#include "optim/optimizer.h"
#include "optim/update_math.h"

namespace lockstep::optim {

/// m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g²;  w -= rate * sqrt(1 - b2^t) / (1 - b1^t) * m /
/// (sqrt(v) + epsilon). Source: Kingma & Ba 2015, the form before section 2.1's bias-corrected
/// variables, as tf.compat.v1.train.AdamOptimizer has it: epsilon is added to the uncorrected root.
class Adam final : public Optimizer {
 public:
  Adam(const OptimizerOptions& options, std::vector<FlatBuffer>& buffers, const ParamTable& params);

 private:
  void begin_step() override;
  void update(const FlatBuffer& buffer, SlotPart* part, const GroupRates& rates) override;

  /// ATen's kernel adds epsilon to the corrected root; this one gives the sum that TensorFlow has.
  double corrected_epsilon() const { return epsilon_ / root_scale_; }
  AdamNumbers numbers(const GroupRates& rates) const;

  double beta1_, beta2_, epsilon_;
  double first_correction_ = 1;  // 1 - beta1^t
  double root_scale_ = 1;        // sqrt(1 - beta2^t)
  at::Tensor update_number_;     // float32 scalar, as the fused kernel wants it
};

}  // namespace lockstep::optim
