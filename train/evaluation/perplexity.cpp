#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>

#include "base/error.h"
#include "train/evaluation/class_outputs.h"
#include "train/evaluation/eval_metric.h"

namespace lockstep::train {
namespace {

/// Metric with two sums: cross-entropy without label smoothing, and tokens or samples.
class Perplexity : public EvalMetric {
 public:
  explicit Perplexity(data::SampleSpec spec) : spec_(std::move(spec)) {}

  int64_t num_sums() const override { return 2; }

  at::Tensor sums(const at::Tensor& outputs_BO, const at::Tensor& targets_BY) const override {
    const ClassOutputs batch = class_outputs("perplexity", outputs_BO, targets_BY, spec_);
    const at::Tensor loss_N = at::cross_entropy_loss(batch.outputs_NC, batch.classes_N,
                                                     /*weight=*/{}, at::Reduction::None);
    // In float64: float32 would lose digits over many tokens.
    const at::Tensor loss = loss_N.sum(at::kDouble);
    return at::stack({loss, at::full_like(loss, loss_N.size(0))});
  }

  std::vector<EvalValue> values(const at::Tensor& sums_S) const override {
    // e to the mean over all tokens, not the mean of the batches' perplexities.
    return {{"perplexity", (sums_S[0] / sums_S[1]).exp()}};
  }

 private:
  data::SampleSpec spec_;
};

}  // namespace

std::unique_ptr<EvalMetric> make_perplexity(const data::SampleSpec& spec) {
  if (spec.target_kind != data::TargetKind::kTokens && spec.target_kind != data::TargetKind::kClass)
    throw Error(ExitCode::kConfig, "train",
                fmt::format("eval.metrics: perplexity takes tokens or class numbers, the data's "
                            "targets are {}; leave it out",
                            name_of(spec.target_kind)));
  return std::make_unique<Perplexity>(spec);
}

EvalMetricType perplexity_type() {
  return {"perplexity", [](ConfigReader*) -> MakeEvalMetric { return make_perplexity; }};
}

}  // namespace lockstep::train
