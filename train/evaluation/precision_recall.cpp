#include <ATen/TensorOperators.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>

#include "train/evaluation/class_outputs.h"
#include "train/evaluation/eval_metric.h"

namespace lockstep::train {
namespace {

/// Returns part / whole, or 0 if whole is 0, like scikit-learn.
at::Tensor share(const at::Tensor& part_C, const at::Tensor& whole_C) {
  return part_C / whole_C.clamp_min(1);
}

/// Metric with three sums per class: correct samples, predicted samples, actual samples.
class PrecisionRecall : public EvalMetric {
 public:
  explicit PrecisionRecall(data::SampleSpec spec) : spec_(std::move(spec)) {}

  int64_t num_sums() const override { return 3 * spec_.num_classes; }

  at::Tensor sums(const at::Tensor& outputs_BO, const at::Tensor& targets_BY) const override {
    const ClassOutputs batch = class_outputs("precision_recall", outputs_BO, targets_BY, spec_);
    const at::Tensor said_N = batch.outputs_NC.argmax(1);
    const at::Tensor found_N = batch.classes_N.masked_select(said_N.eq(batch.classes_N));
    return at::cat({count(found_N), count(said_N), count(batch.classes_N)}).to(at::kDouble);
  }

  std::vector<EvalValue> values(const at::Tensor& sums_S) const override {
    const at::Tensor sums_3C = sums_S.view({3, spec_.num_classes});
    const at::Tensor precision_C = share(sums_3C[0], sums_3C[1]);
    const at::Tensor recall_C = share(sums_3C[0], sums_3C[2]);
    return {{"macro_precision", precision_C.mean()},
            {"macro_recall", recall_C.mean()},
            {"precision", precision_C},
            {"recall", recall_C}};
  }

 private:
  at::Tensor count(const at::Tensor& classes_N) const {
    return at::bincount(classes_N, /*weights=*/{}, spec_.num_classes);
  }

  data::SampleSpec spec_;
};

std::unique_ptr<EvalMetric> make_precision_recall(const data::SampleSpec& spec) {
  require_classes("precision_recall", spec);
  return std::make_unique<PrecisionRecall>(spec);
}

}  // namespace

EvalMetricType precision_recall_type() {
  return {"precision_recall",
          [](ConfigReader*) -> MakeEvalMetric { return make_precision_recall; }};
}

}  // namespace lockstep::train
