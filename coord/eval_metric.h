#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "coord/callback.h"
#include "coord/data_map.h"

/// Symbols: S = sums, N = samples, or tokens of all samples without ignored ones, C = classes.
namespace lockstep::coord {

/// A result of a metric, on the CPU: [] one number, [C] one per class, [C, C] one per pair of
/// classes; float64, or int64 for counts.
struct EvalValue {
  std::string name;  ///< "share_right"
  at::Tensor value;
};

/// Metric computed from sums over samples. So the values do not depend on how samples are divided
/// into batches and over ranks. Rows of eval.metrics make metrics for evaluations
/// (train/eval_metrics.h). KpiEvaluator makes a callback of one.
struct EvalMetric {
  /// Keys that `sums` reads, as those of a callback. A row of eval.metrics gets only the default
  /// ones: the outputs of a batch as float32, and its targets.
  std::vector<std::string> incoming_keys = {"logits", "targets"};
  int64_t num_sums = 0;
  /// Returns the sums of one batch: float64 [S], on any device. Throws Error if the shapes do not
  /// fit.
  std::function<at::Tensor(const DataMap& data)> sums;
  /// Returns the results for the sums [S] over all samples, on the CPU; never called without
  /// samples. A KpiEvaluator also calls it before the run, with sums of 1, to get the names.
  std::function<std::vector<EvalValue>(const at::Tensor& sums_S)> values;
};

/// Callback that shows the single numbers of a metric as KPIs. Each iteration adds to the sums. At
/// the end of each training epoch, and in end(), the sums are added over the ranks. The values
/// appear as TensorBoard's `kpi/<name>` at the step of the last iteration, by Services::set_kpi,
/// and in values(). Then the sums restart. A pass that was broken off shows no values. Ranks may
/// have different numbers of iterations. In training a warning is logged once, because each
/// iteration takes longer.
class KpiEvaluator : public Callback {
 public:
  explicit KpiEvaluator(EvalMetric metric, Services services = {});

  std::vector<std::string> incoming_keys() const override { return metric_.incoming_keys; }
  RunOn run_on() const override { return RunOn::kAll; }
  void begin() override;
  std::optional<DataMap> on_iteration_end(const DataMap& data) override;
  void on_epoch_end() override { show(); }
  void end() override;
  std::vector<std::string> kpi_names() const override;

  /// Returns the values of the last pass by name; the same on all ranks.
  const std::map<std::string, double>& values() const { return values_; }

 private:
  void show();

  const EvalMetric metric_;
  const Services services_;
  at::Tensor sums_;           // float64: the metric's, then the number of iterations
  int64_t summary_step_ = 0;  // of the last iteration
  std::map<std::string, double> values_;
};

/// Outputs and targets of a batch, one row per class to predict.
struct ClassOutputs {
  at::Tensor outputs_NC;  ///< the network's outputs
  at::Tensor classes_N;   ///< int64; for soft labels the most probable class
};

/// Returns float64 [K + 1]: for each of `ks` the samples whose class is among the k highest
/// outputs, then all samples. Ties count as correct, samples with a non-finite output as wrong,
/// like TensorFlow's in_top_k.
at::Tensor top_k_sums(const ClassOutputs& batch, const std::vector<int64_t>& ks);
/// Returns top_<k> for each of `ks`.
std::vector<EvalValue> top_k_values(const at::Tensor& sums_S, const std::vector<int64_t>& ks);

/// Adds samples to `counts`, float64 [C * C]: by class (row) and by predicted class (column). All
/// numbers must be below `num_classes`.
void count_confusion(const at::Tensor& classes_N, const at::Tensor& predicted_N,
                     int64_t num_classes, const at::Tensor& counts);

}  // namespace lockstep::coord
