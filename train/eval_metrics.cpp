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
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace lockstep::train {

using data::TargetKind;

namespace {

[[noreturn]] void refuse_data(const std::string& message) {
  throw Error(ExitCode::kConfig, "train", message);
}

}  // namespace

coord::DataMap metric_data(const at::Tensor& outputs_BO, const at::Tensor& targets_BY) {
  coord::DataMap data;
  data.put("logits", outputs_BO);
  data.put("targets", targets_BY);
  return data;
}

ClassOutputs class_outputs(const std::string& metric, const coord::DataMap& data,
                           const data::SampleSpec& spec) {
  const at::Tensor &outputs_BO = data.tensor("logits"), &targets_BY = data.tensor("targets");
  const at::Tensor classes_BT =
      spec.target_kind == TargetKind::kSoft ? targets_BY.argmax(-1) : targets_BY;
  std::vector<int64_t> wanted = classes_BT.sizes().vec();
  wanted.push_back(spec.num_classes);
  if (outputs_BO.sizes() != at::IntArrayRef(wanted))
    refuse_data(fmt::format(
        "the network returns [{}] for {} samples, the metric {} needs [{}]: the data has {}",
        fmt::join(outputs_BO.sizes(), ", "), targets_BY.size(0), metric, fmt::join(wanted, ", "),
        describe(spec)));
  ClassOutputs all{outputs_BO.flatten(0, -2), classes_BT.flatten()};
  if (!spec.may_ignore) return all;
  const at::Tensor counted_N = all.classes_N.ne(data::kIgnoredTarget).nonzero().flatten();
  return {all.outputs_NC.index_select(0, counted_N), all.classes_N.index_select(0, counted_N)};
}

void require_classes(const std::string& metric, const data::SampleSpec& spec) {
  if (spec.target_kind == TargetKind::kValues)
    refuse_data(
        fmt::format("eval.metrics: {} does not support {}, which are the data's targets; remove it",
                    metric, name_of(spec.target_kind)));
}

static EvalMetric top_k(int64_t k, const data::SampleSpec& spec) {
  require_classes("top_k", spec);
  if (k > spec.num_classes)
    refuse_data(fmt::format("eval.top_k.k is {}, but the data has {} classes: use at most {}", k,
                            spec.num_classes, spec.num_classes));
  return {.num_sums = 2,
          .sums =
              [=](const coord::DataMap& data) {
                return coord::top_k_sums(class_outputs("top_k", data, spec), {k});
              },
          .values = [k](const at::Tensor& sums_S) { return coord::top_k_values(sums_S, {k}); }};
}

static MakeEvalMetric read_top_k(ConfigReader* in) {
  int64_t k = 5;
  in->read("k", &k, count_from(1), "top_k: number of highest outputs that may contain the class");
  return [k](const data::SampleSpec& spec) { return top_k(k, spec); };
}

/// Returns part / whole, or 0 if whole is 0, like scikit-learn.
static at::Tensor share(const at::Tensor& part_C, const at::Tensor& whole_C) {
  return part_C / whole_C.clamp_min(1);
}

/// Metric with three sums per class: correct samples, predicted samples, actual samples.
static EvalMetric precision_recall(const data::SampleSpec& spec) {
  require_classes("precision_recall", spec);
  const int64_t num_classes = spec.num_classes;
  const auto sums = [=](const coord::DataMap& data) {
    const ClassOutputs batch = class_outputs("precision_recall", data, spec);
    const at::Tensor said_N = batch.outputs_NC.argmax(1);
    const at::Tensor found_N = batch.classes_N.masked_select(said_N.eq(batch.classes_N));
    std::vector<at::Tensor> counts;
    for (const at::Tensor& classes_N : {found_N, said_N, batch.classes_N})
      counts.push_back(at::bincount(classes_N, /*weights=*/{}, num_classes));
    return at::cat(counts).to(at::kDouble);
  };
  const auto values = [=](const at::Tensor& sums_S) -> std::vector<EvalValue> {
    const at::Tensor sums_3C = sums_S.view({3, num_classes});
    const at::Tensor precision_C = share(sums_3C[0], sums_3C[1]);
    const at::Tensor recall_C = share(sums_3C[0], sums_3C[2]);
    return {{"macro_precision", precision_C.mean()},
            {"macro_recall", recall_C.mean()},
            {"precision", precision_C},
            {"recall", recall_C}};
  };
  return {.num_sums = 3 * num_classes, .sums = sums, .values = values};
}

/// Metric with C * C counts as sums. Many classes are refused, since every rank stores all sums.
static EvalMetric confusion_matrix(const data::SampleSpec& spec) {
  constexpr int64_t kMaxClasses = 1000;  // 8 MB of sums, 1,000,000 numbers in summary.json
  require_classes("confusion_matrix", spec);
  const int64_t num_classes = spec.num_classes;
  if (num_classes > kMaxClasses)
    refuse_data(
        fmt::format("eval.metrics: confusion_matrix supports at most {} classes, the data has {}; "
                    "remove it, or use precision_recall",
                    kMaxClasses, num_classes));
  const auto sums = [=](const coord::DataMap& data) {
    const ClassOutputs batch = class_outputs("confusion_matrix", data, spec);
    const at::Tensor counts_S =
        at::zeros({num_classes * num_classes}, batch.outputs_NC.options().dtype(at::kDouble));
    coord::count_confusion(batch.classes_N, batch.outputs_NC.argmax(1), num_classes, counts_S);
    return counts_S;
  };
  const auto values = [=](const at::Tensor& sums_S) -> std::vector<EvalValue> {
    return {{"confusion_matrix", sums_S.view({num_classes, num_classes}).to(at::kLong)}};
  };
  return {.num_sums = num_classes * num_classes, .sums = sums, .values = values};
}

/// Metric with two sums: cross-entropy without label smoothing, and tokens or samples.
static EvalMetric perplexity(const data::SampleSpec& spec) {
  if (spec.target_kind != TargetKind::kTokens && spec.target_kind != TargetKind::kClass)
    refuse_data(
        fmt::format("eval.metrics: perplexity needs tokens or class numbers, the data's targets "
                    "are {}; remove it",
                    name_of(spec.target_kind)));
  const auto sums = [spec](const coord::DataMap& data) {
    const ClassOutputs batch = class_outputs("perplexity", data, spec);
    const at::Tensor loss_N = at::cross_entropy_loss(batch.outputs_NC, batch.classes_N,
                                                     /*weight=*/{}, at::Reduction::None);
    // In float64: float32 would lose digits over many tokens.
    const at::Tensor loss = loss_N.sum(at::kDouble);
    return at::stack({loss, at::full_like(loss, loss_N.size(0))});
  };
  // e to the mean over all tokens, not the mean of the batches' perplexities.
  const auto values = [](const at::Tensor& sums_S) -> std::vector<EvalValue> {
    return {{"perplexity", (sums_S[0] / sums_S[1]).exp()}};
  };
  return {.num_sums = 2, .sums = sums, .values = values};
}

NamedTable<EvalMetricType>& eval_metric_types() {
  static NamedTable<EvalMetricType> types = [] {
    NamedTable<EvalMetricType> own("eval.metrics");
    own.add({"top_k", read_top_k});
    own.add({"precision_recall", [](ConfigReader*) { return precision_recall; }});
    own.add({"confusion_matrix", [](ConfigReader*) { return confusion_matrix; }});
    own.add({"perplexity", [](ConfigReader*) { return perplexity; }});
    return own;
  }();
  return types;
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

std::vector<metrics::ValidationValue> numbers_of(const std::vector<EvalValue>& found,
                                                 int64_t max_classes) {
  std::vector<metrics::ValidationValue> numbers;
  for (const auto& [name, value] : found) {
    if (value.dim() == 0) numbers.push_back({name, std::nullopt, value.item<double>()});
    if (value.dim() != 1 || value.size(0) > max_classes) continue;
    for (int64_t i = 0; i < value.size(0); ++i)
      numbers.push_back({name, i, value[i].item<double>()});
  }
  return numbers;
}

}  // namespace lockstep::train
