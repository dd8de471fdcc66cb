// Metrics and results of evaluations. class_outputs() brings samples and tokens, class numbers and
// soft labels to one form: a row of outputs and a class.
#include "train/eval_metrics.h"

#include <cmath>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace lockstep::train {

using data::TargetKind;

ClassOutputs class_outputs(const std::string& metric, const at::Tensor& outputs_BO,
                           const at::Tensor& targets_BY, const data::SampleSpec& spec) {
  const at::Tensor classes_BT =
      spec.target_kind == TargetKind::kSoft ? targets_BY.argmax(-1) : targets_BY;
  std::vector<int64_t> wanted = classes_BT.sizes().vec();
  wanted.push_back(spec.num_classes);
  if (outputs_BO.sizes() != at::IntArrayRef(wanted))
    throw Error(ExitCode::kConfig, "train",
                fmt::format("the network gives [{}] for {} samples, the metric {} needs [{}]: the "
                            "data has {}",
                            fmt::join(outputs_BO.sizes(), ", "), targets_BY.size(0), metric,
                            fmt::join(wanted, ", "), describe(spec)));
  ClassOutputs all{outputs_BO.flatten(0, -2), classes_BT.flatten()};
  if (!spec.may_ignore) return all;
  const at::Tensor counted_N = all.classes_N.ne(data::kIgnoredTarget).nonzero().flatten();
  return {all.outputs_NC.index_select(0, counted_N), all.classes_N.index_select(0, counted_N)};
}

void require_classes(const std::string& metric, const data::SampleSpec& spec) {
  if (spec.target_kind == TargetKind::kValues)
    throw Error(ExitCode::kConfig, "train",
                fmt::format("eval.metrics: {} does not take {}, which are the data's targets; "
                            "leave it out",
                            metric, name_of(spec.target_kind)));
}

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
                     "top_k: number of highest outputs that may contain the class");
            return [k](const data::SampleSpec& spec) { return make_top_k(k, spec); };
          }};
}

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

// C x C counts as sums. Large numbers of classes are refused, since every rank stores all sums.

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

double number_of(const EvalResult& result, const std::string& metric) {
  // NaN is never better, so a missing accuracy never counts as the best.
  return metric == "eval.loss" ? result.loss : result.accuracy.value_or(NAN);
}

std::string text_of(const EvalResult& result) {
  std::string text = fmt::format("loss {:.4f}", result.loss);
  if (result.accuracy) text += fmt::format(", accuracy {:.4f}", *result.accuracy);
  for (const auto& [name, value] : result.metrics)
    if (value.dim() == 0) text += fmt::format(", {} {:.4f}", name, value.item<double>());
  return text + fmt::format(" over {} samples", result.num_samples);
}

std::vector<metrics::ValidationValue> numbers_of(const std::vector<EvalValue>& found) {
  std::vector<metrics::ValidationValue> numbers;
  for (const auto& [name, value] : found) {
    if (value.dim() == 0) numbers.push_back({name, std::nullopt, value.item<double>()});
    if (value.dim() != 1) continue;
    for (int64_t i = 0; i < value.size(0); ++i)
      numbers.push_back({name, i, value[i].item<double>()});
  }
  return numbers;
}

std::vector<metrics::ValidationValue> shown_numbers(const std::vector<EvalValue>& found) {
  // Each class becomes a time series in Prometheus and a curve in TensorBoard.
  constexpr int64_t kMaxShownClasses = 100;
  std::vector<metrics::ValidationValue> numbers;
  for (const EvalValue& value : found)
    if (value.value.dim() == 0 || value.value.size(0) <= kMaxShownClasses)
      for (metrics::ValidationValue& number : numbers_of({value}))
        numbers.push_back(std::move(number));
  return numbers;
}

}  // namespace lockstep::train
