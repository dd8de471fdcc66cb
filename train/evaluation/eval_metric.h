#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/named_table.h"
#include "base/yaml/config_reader.h"
#include "data/datasets/dataset.h"

/// Metrics of evaluations: the values of eval.metrics in a run file. Symbols: B = samples, O = the
/// shape of one sample's outputs, Y = the shape of one target, C = classes, S = sums.
namespace lockstep::train {

/// A result of a metric, on the CPU: [] one number, [C] one per class, [C, C] one per pair of
/// classes; float64, or int64 for counts.
struct EvalValue {
  std::string name;
  at::Tensor value;
};

/// Metric computed from sums over samples. So the distribution of samples over ranks and batches
/// does not matter: the evaluator adds the sums. Stateless.
class EvalMetric {
 public:
  virtual ~EvalMetric() = default;
  virtual int64_t num_sums() const = 0;
  /// Returns the sums of one batch: float64 [S], on the outputs' device. Outputs are float32.
  /// Throws Error(kConfig) if their shape does not fit the targets'.
  virtual at::Tensor sums(const at::Tensor& outputs_BO, const at::Tensor& targets_BY) const = 0;
  /// Returns the results for the sums [S] over all samples, on the CPU; never called without
  /// samples.
  virtual std::vector<EvalValue> values(const at::Tensor& sums_S) const = 0;
};

/// Factory; throws Error(kConfig) if such data do not allow the metric.
using MakeEvalMetric = std::function<std::unique_ptr<EvalMetric>(const data::SampleSpec&)>;

/// A row of the table.
struct EvalMetricType {
  std::string name;
  /// Reads the keys of the metric's section, eval.<name>.
  std::function<MakeEvalMetric(ConfigReader* in)> read;
};

/// Table of metrics. A program that embeds Lockstep adds rows before it reads the run file:
///   top_k             fraction of samples whose class is among the k highest outputs
///   precision_recall  per class, and their means over the classes
///   confusion_matrix  samples of each class (row) by the class with the highest output
///   perplexity        e to the mean cross-entropy, of tokens or class numbers
/// Each token counts as a sample. For soft labels, the most probable class counts.
NamedTable<EvalMetricType>& eval_metric_types();

}  // namespace lockstep::train
