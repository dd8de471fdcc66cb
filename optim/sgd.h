#pragma once

#include "optim/optimizer.h"

namespace lockstep::optim {

/// g += decay * w (weights);  m = momentum * m + g;  w -= rate * m, or rate * (g + momentum * m)
/// with Nesterov. Without momentum: w -= rate * g. Source: tf.compat.v1.train.MomentumOptimizer,
/// GradientDescentOptimizer.
class Sgd final : public Optimizer {
 public:
  Sgd(const OptimizerOptions& options, std::vector<FlatBuffer>& buffers, const ParamTable& params);
  void step(double learning_rate) override;
  StateList state() override;

 private:
  OptimizerOptions options_;
  std::vector<FlatBuffer>& buffers_;
  const ParamTable& params_;
  std::vector<at::Tensor> momentum_;  // [E] a buffer; empty without momentum
  int64_t num_updates_ = 0;
};

}  // namespace lockstep::optim
