#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/named_table.h"
#include "base/yaml/config_reader.h"
#include "coord/eval_metric.h"
#include "data/dataset.h"
#include "metrics/samples.h"

/// Metrics of evaluations (values of eval.metrics), and results. Symbols: C = classes.
namespace lockstep::train {

using coord::ClassOutputs;
using coord::EvalMetric;
using coord::EvalValue;

/// Factory; throws Error(kConfig) if such data do not allow the metric.
using MakeEvalMetric = std::function<EvalMetric(const data::SampleSpec&)>;

/// A row of the table.
struct EvalMetricType {
  std::string name;
  /// Reads the keys of the metric's section, eval.<name>.
  std::function<MakeEvalMetric(ConfigReader* in)> read;
};

/// Table of metrics (docs/evaluation.md). A program that embeds Lockstep adds rows before it reads
/// the run file. Each token counts as a sample. For soft labels, the most probable class counts.
NamedTable<EvalMetricType>& eval_metric_types();

/// Returns the outputs (float32) and targets of a batch as data for metrics of eval.metrics.
coord::DataMap metric_data(const at::Tensor& outputs_BO, const at::Tensor& targets_BY);

/// Reads the outputs and targets of a batch, without ignored targets (data::kIgnoredTarget). Throws
/// Error(kConfig) that names the metric if the outputs' shape does not fit.
ClassOutputs class_outputs(const std::string& metric, const coord::DataMap& data,
                           const data::SampleSpec& spec);

/// Throws Error(kConfig) if the targets are values, which have no classes.
void require_classes(const std::string& metric, const data::SampleSpec& spec);

/// Results of an evaluation; the same on every rank.
struct EvalResult {
  double loss = 0;  ///< mean over undamaged samples, or over tokens that are not ignored
  std::optional<double> accuracy;  ///< Loss::num_correct / samples; nullopt for values
  int64_t num_samples = 0;
  std::vector<EvalValue> metrics = {};  ///< those of eval.metrics
  bool is_abandoned = false;            ///< a stop was requested; all values are undefined
  double seconds = 0;                   ///< rank: from the first sample to the sums of all ranks
  std::map<std::string, double> kpis = {};  ///< of callbacks, by name (docs/callbacks.md)
};

/// Returns the value of eval.loss or eval.accuracy; NaN if there is none.
double number_of(const EvalResult& result, const std::string& metric);

/// Formats a result for the log: "loss 0.2157, accuracy 0.9415, top_5 1.0000 over 359 samples".
/// Metrics: only values of all samples.
std::string text_of(const EvalResult& result);

/// Results of metrics as single numbers, of all samples or of one class each. Values of pairs of
/// classes are omitted, and those of more than max_classes.
std::vector<metrics::ValidationValue> numbers_of(const std::vector<EvalValue>& found,
                                                 int64_t max_classes = INT64_MAX);

/// Most classes of a metric that is exported by class: each becomes a time series in Prometheus and
/// a curve in TensorBoard.
inline constexpr int64_t kMaxShownClasses = 100;

}  // namespace lockstep::train
