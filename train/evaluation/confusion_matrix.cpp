// C x C counts as sums. Large numbers of classes are refused, since every rank stores all sums.
#include <ATen/TensorOperators.h>
#include <ATen/ops/bincount.h>
#include <fmt/format.h>

#include "base/error.h"
#include "train/evaluation/class_outputs.h"
#include "train/evaluation/eval_metric.h"

namespace lockstep::train {
namespace {

constexpr int64_t kMaxClasses = 1000;  // 8 MB of sums, 1,000,000 numbers in summary.json

class ConfusionMatrix : public EvalMetric {
 public:
  explicit ConfusionMatrix(data::SampleSpec spec) : spec_(std::move(spec)) {}

  int64_t num_sums() const override { return spec_.num_classes * spec_.num_classes; }

  at::Tensor sums(const at::Tensor& outputs_BO, const at::Tensor& targets_BY) const override {
    const ClassOutputs batch = class_outputs("confusion_matrix", outputs_BO, targets_BY, spec_);
    // Row-major index of the cell (actual, predicted).
    const at::Tensor cell_N = batch.classes_N * spec_.num_classes + batch.outputs_NC.argmax(1);
    return at::bincount(cell_N, /*weights=*/{}, num_sums()).to(at::kDouble);
  }

  std::vector<EvalValue> values(const at::Tensor& sums_S) const override {
    return {
        {"confusion_matrix", sums_S.view({spec_.num_classes, spec_.num_classes}).to(at::kLong)}};
  }

 private:
  data::SampleSpec spec_;
};

std::unique_ptr<EvalMetric> make_confusion_matrix(const data::SampleSpec& spec) {
  require_classes("confusion_matrix", spec);
  if (spec.num_classes > kMaxClasses)
    throw Error(ExitCode::kConfig, "train",
                fmt::format("eval.metrics: confusion_matrix takes at most {} classes, the data has "
                            "{}; leave it out, or take precision_recall",
                            kMaxClasses, spec.num_classes));
  return std::make_unique<ConfusionMatrix>(spec);
}

}  // namespace

EvalMetricType confusion_matrix_type() {
  return {"confusion_matrix",
          [](ConfigReader*) -> MakeEvalMetric { return make_confusion_matrix; }};
}

}  // namespace lockstep::train
