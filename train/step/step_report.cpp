#include "train/step/step_report.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

namespace lockstep::train {

void StepTensors::begin(const at::Tensor& inputs_BX, const at::Tensor& targets_BY) {
  inputs_BX_ = inputs_BX;
  targets_BY_ = targets_BY;
  outputs_.clear();
}

void StepTensors::add_outputs(const at::Tensor& outputs_BO) {
  if (!outputs_BO.defined()) return;
  last_outputs_ = outputs_BO.detach().to(at::kFloat);
  outputs_.push_back(last_outputs_);
}

at::Tensor StepTensors::outputs_BO() const {
  if (outputs_.size() > 1) return at::cat(outputs_);
  if (!outputs_.empty()) return outputs_.front();
  // No samples: an empty tensor of the shape that outputs had before.
  if (inputs_BX_.size(0) > 0) return {};
  return last_outputs_.defined() ? last_outputs_.narrow(0, 0, 0)
                                 : at::empty({0, num_outputs_}, at::TensorOptions(at::kFloat));
}

}  // namespace lockstep::train
