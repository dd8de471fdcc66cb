#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "data/datasets/dataset.h"

namespace lockstep::train {

/// Outputs and targets of a batch, one row per class to predict. Symbols: N = samples, or tokens of
/// all samples without ignored ones (data::kIgnoredTarget); C = classes.
struct ClassOutputs {
  at::Tensor outputs_NC;  ///< the network's outputs
  at::Tensor classes_N;   ///< int64; for soft labels the most probable class
};

/// Flattens a batch. Throws Error(kConfig) that names the metric if the outputs' shape does not
/// fit.
ClassOutputs class_outputs(const std::string& metric, const at::Tensor& outputs_BO,
                           const at::Tensor& targets_BY, const data::SampleSpec& spec);

/// Throws Error(kConfig) if the targets are values, which have no classes.
void require_classes(const std::string& metric, const data::SampleSpec& spec);

}  // namespace lockstep::train
