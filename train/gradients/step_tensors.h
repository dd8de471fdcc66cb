#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::train {

/// What went through the network in one iteration on this rank: B samples, B >= 0, without
/// gradients. Outputs that are computed in parts are joined when they are asked for.
class StepTensors {
 public:
  /// `num_outputs`: of a sample; the shape of no outputs until there were some.
  explicit StepTensors(int64_t num_outputs = 0) : num_outputs_(num_outputs) {}

  /// Before an iteration: its batch.
  void begin(const at::Tensor& inputs_BX, const at::Tensor& targets_BY);
  /// Of the next samples of the batch; undefined where the network computes its own loss.
  void add_outputs(const at::Tensor& outputs_BO);

  const at::Tensor& inputs_BX() const { return inputs_BX_; }
  const at::Tensor& targets_BY() const { return targets_BY_; }
  /// float32; undefined where the network computes its own loss and has samples.
  at::Tensor outputs_BO() const;

 private:
  int64_t num_outputs_;
  at::Tensor inputs_BX_, targets_BY_;
  std::vector<at::Tensor> outputs_;
  at::Tensor last_outputs_;  // of the last part, for its shape
};

}  // namespace lockstep::train
