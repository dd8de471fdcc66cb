#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::train {

/// Tensors of one iteration on this rank: B samples, B >= 0, without gradients. Outputs computed in
/// parts are concatenated on request.
class StepTensors {
 public:
  /// num_outputs: per sample; the shape of empty outputs until there were any.
  explicit StepTensors(int64_t num_outputs = 0) : num_outputs_(num_outputs) {}

  /// Begins an iteration with its batch.
  void begin(const at::Tensor& inputs_BX, const at::Tensor& targets_BY);
  /// Adds the outputs of the next samples of the batch; undefined if the network computes its own
  /// loss.
  void add_outputs(const at::Tensor& outputs_BO);

  const at::Tensor& inputs_BX() const { return inputs_BX_; }
  const at::Tensor& targets_BY() const { return targets_BY_; }
  /// Returns float32 outputs; undefined if the network computes its own loss and has samples.
  at::Tensor outputs_BO() const;

 private:
  int64_t num_outputs_;
  at::Tensor inputs_BX_, targets_BY_;
  std::vector<at::Tensor> outputs_;
  at::Tensor last_outputs_;  // of the last part, for its shape
};

}  // namespace lockstep::train
