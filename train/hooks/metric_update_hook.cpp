// Metrics are sums, so batches and ranks are added without storing outputs.
#include "train/hooks/metric_update_hook.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

namespace lockstep::train {

void MetricUpdateHook::begin(const LoopStart&) {
  sums_.clear();
  for (const auto& metric : metrics_) sums_.push_back(at::zeros({metric->num_sums()}, at::kDouble));
}

void MetricUpdateHook::after_step(const IterationEnd& end) {
  if (metrics_.empty()) return;
  const at::Tensor outputs_BO = end.tensors->outputs_BO(), targets_BY = end.tensors->targets_BY();
  for (size_t i = 0; i < metrics_.size(); ++i)
    sums_[i] += metrics_[i]->sums(outputs_BO, targets_BY).cpu();
}

std::vector<EvalValue> MetricUpdateHook::values(dist::Communicator& control) {
  std::vector<EvalValue> found;
  if (metrics_.empty()) return found;
  // One message for all metrics.
  at::Tensor all = at::cat(sums_);
  control.all_reduce(all, dist::ReduceOp::kSum)->wait();
  int64_t begin = 0;
  for (size_t i = 0; i < metrics_.size(); ++i) {
    const int64_t num_sums = sums_[i].numel();
    for (EvalValue& value : metrics_[i]->values(all.narrow(0, begin, num_sums)))
      found.push_back(std::move(value));
    begin += num_sums;
  }
  return found;
}

}  // namespace lockstep::train
