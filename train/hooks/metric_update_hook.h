#pragma once

#include <vector>

#include "dist/communicator.h"
#include "train/evaluation/eval_options.h"
#include "train/hooks/hook.h"

namespace lockstep::train {

/// Updates the metrics of eval.metrics batch by batch, as sums that the ranks add at the end. Every
/// evaluation has one.
class MetricUpdateHook final : public Hook {
 public:
  explicit MetricUpdateHook(EvalMetrics metrics) : metrics_(std::move(metrics)) {}

  bool reads_tensors() const override { return !metrics_.empty(); }
  void begin(const LoopStart&) override;
  void after_step(const IterationEnd& end) override;
  /// Returns the results over all ranks. Collective.
  std::vector<EvalValue> values(dist::Communicator& control);

 private:
  const EvalMetrics metrics_;
  std::vector<at::Tensor> sums_;  // by metric, float64
};

}  // namespace lockstep::train
