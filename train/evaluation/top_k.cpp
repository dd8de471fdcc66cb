#include <ATen/TensorOperators.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>

#include "base/error.h"
#include "train/evaluation/class_outputs.h"
#include "train/evaluation/eval_metric.h"

namespace lockstep::train {
namespace {

/// Top-k accuracy. Ties count as correct, samples with a non-finite output as wrong, like
/// TensorFlow's in_top_k.
class TopK : public EvalMetric {
 public:
  TopK(int64_t k, data::SampleSpec spec) : k_(k), spec_(std::move(spec)) {}

  int64_t num_sums() const override { return 2; }

  at::Tensor sums(const at::Tensor& outputs_BO, const at::Tensor& targets_BY) const override {
    const ClassOutputs batch = class_outputs("top_k", outputs_BO, targets_BY, spec_);
    const at::Tensor own_N1 = batch.outputs_NC.gather(1, batch.classes_N.unsqueeze(1));
    // Counting higher outputs is cheaper than sorting all classes.
    const at::Tensor num_higher_N = batch.outputs_NC.gt(own_N1).sum(1);
    const at::Tensor right_N = num_higher_N.lt(k_).logical_and(batch.outputs_NC.isfinite().all(1));
    const at::Tensor num_right = right_N.sum().to(at::kDouble);
    return at::stack({num_right, at::full_like(num_right, right_N.size(0))});
  }

  std::vector<EvalValue> values(const at::Tensor& sums_S) const override {
    return {{fmt::format("top_{}", k_), sums_S[0] / sums_S[1]}};
  }

 private:
  int64_t k_;
  data::SampleSpec spec_;
};

std::unique_ptr<EvalMetric> make_top_k(int64_t k, const data::SampleSpec& spec) {
  require_classes("top_k", spec);
  if (k > spec.num_classes)
    throw Error(ExitCode::kConfig, "train",
                fmt::format("eval.top_k.k is {}, but the data has {} classes: take at most {}", k,
                            spec.num_classes, spec.num_classes));
  return std::make_unique<TopK>(k, spec);
}

}  // namespace

EvalMetricType top_k_type() {
  return {"top_k", [](ConfigReader* in) -> MakeEvalMetric {
            int64_t k = 5;
            in->read("k", &k, count_from(1),
                     "top_k: a sample is right if its class is among this many highest outputs");
            return [k](const data::SampleSpec& spec) { return make_top_k(k, spec); };
          }};
}

}  // namespace lockstep::train
