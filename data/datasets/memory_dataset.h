#pragma once

#include "data/datasets/dataset.h"

namespace lockstep::data {

/// A data set held in memory as two tensors. Symbols: S = samples, X = the shape of one input.
class MemoryDataset : public Dataset {
 public:
  /// inputs_SX float32, targets_S int64 in [0, num_classes).
  MemoryDataset(at::Tensor inputs_SX, at::Tensor targets_S, int64_t num_classes);

  int64_t num_samples() const override { return targets_S_.size(0); }
  int64_t num_classes() const override { return num_classes_; }
  std::vector<int64_t> input_shape() const override { return inputs_SX_.sizes().slice(1).vec(); }
  Samples get(std::span<const int64_t> indices_B) const override;
  std::string digest() const override;

 private:
  at::Tensor inputs_SX_;
  at::Tensor targets_S_;
  int64_t num_classes_;
};

}  // namespace lockstep::data
