#pragma once

#include "optim/optimizer.h"
#include "optim/update_math.h"

namespace lockstep::optim {

/// g += decay * w;  m = momentum * m + g;  w -= rate * m, or rate * (g + momentum * m)
/// with Nesterov. Without momentum: w -= rate * g. Source: tf.compat.v1.train.MomentumOptimizer,
/// GradientDescentOptimizer.
class Sgd final : public Optimizer {
 public:
  Sgd(const OptimizerOptions& options, std::vector<FlatBuffer>& buffers, const ParamTable& params);

 private:
  void update(const FlatBuffer& buffer, SlotPart* part, const GroupRates& rates) override;

  MomentumNumbers numbers(const GroupRates& rates) const;

  double momentum_;
  bool nesterov_;
};

}  // namespace lockstep::optim
