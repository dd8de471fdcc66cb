#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "data/datasets/dataset.h"

namespace lockstep::train {

/// Outputs and targets of a batch, a row for each class to be found. Symbols: N = samples, or
/// tokens of all samples without the ignored ones (data::kIgnoredTarget); C = classes.
struct ClassOutputs {
  at::Tensor outputs_NC;  ///< as the network gives them
  at::Tensor classes_N;   ///< int64; of soft labels the most probable class
};

/// Throws Error(kConfig), which names the metric, if the shape of the outputs does not fit.
ClassOutputs class_outputs(const std::string& metric, const at::Tensor& outputs_BO,
                           const at::Tensor& targets_BY, const data::SampleSpec& spec);

/// Throws Error(kConfig) if the targets are values, which have no classes.
void require_classes(const std::string& metric, const data::SampleSpec& spec);

}  // namespace lockstep::train
