#pragma once

#include "data/datasets/dataset.h"

namespace lockstep::data {

/// Data set in memory as two tensors. Symbols: S = samples, X = shape of one input, Y = shape of
/// one target.
class MemoryDataset : public Dataset {
 public:
  /// inputs_SX is float32, or int64 for tokens. targets_SY is as `target_kind` says; class numbers
  /// and tokens are in [0, num_classes).
  MemoryDataset(at::Tensor inputs_SX, at::Tensor targets_SY, int64_t num_classes,
                TargetKind target_kind = TargetKind::kClass);

  int64_t num_samples() const override { return targets_SY_.size(0); }
  SampleSpec spec() const override;
  Samples get(std::span<const int64_t> indices_B, int64_t epoch) const override;
  int64_t usual_threads() const override { return 0; }
  std::string digest() const override;

 private:
  at::Tensor inputs_SX_;
  at::Tensor targets_SY_;
  TargetKind target_kind_;
  int64_t num_classes_;
};

}  // namespace lockstep::data
