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

/// Metrics of evaluations: what eval.metrics of a run file may name. Symbols: B = samples, O = the
/// shape of what the network gives for one, Y = the shape of one target, C = classes, S = sums.
namespace lockstep::train {

/// Something that a metric has found, on the CPU: [] one number, [C] one of each class, [C, C] one
/// of each pair; float64, or int64 for counts.
struct EvalValue {
  std::string name;
  at::Tensor value;
};

/// Numbers that follow from sums over samples, so that it does not matter which rank saw a sample
/// in which batch: the evaluator adds the sums of batches and ranks. Holds no state.
class EvalMetric {
 public:
  virtual ~EvalMetric() = default;
  virtual int64_t num_sums() const = 0;
  /// Of one batch: float64 [S], on the outputs' device. Outputs are float32. Throws Error(kConfig)
  /// if their shape does not fit the targets'.
  virtual at::Tensor sums(const at::Tensor& outputs_BO, const at::Tensor& targets_BY) const = 0;
  /// What the sums [S] over all samples say, on the CPU; never for no samples.
  virtual std::vector<EvalValue> values(const at::Tensor& sums_S) const = 0;
};

/// Throws Error(kConfig) if the metric cannot be had of such data.
using MakeEvalMetric = std::function<std::unique_ptr<EvalMetric>(const data::SampleSpec&)>;

/// One row of the table.
struct EvalMetricType {
  std::string name;
  /// Reads the keys of the metric's own section, eval.<name>.
  std::function<MakeEvalMetric(ConfigReader* in)> read;
};

/// The table; a program that embeds Lockstep adds rows of its own before it reads the run file:
///   top_k             share of samples whose class is among the k highest outputs
///   precision_recall  of each class, and their means over the classes
///   confusion_matrix  samples of each class (row) by the class that got the highest output
///   perplexity        e to the mean cross-entropy, of tokens or class numbers
/// Of tokens, each counts as a sample; of soft labels, the most probable class counts.
NamedTable<EvalMetricType>& eval_metric_types();

}  // namespace lockstep::train
