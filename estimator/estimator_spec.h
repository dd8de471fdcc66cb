#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/named_table.h"
#include "base/yaml/config_reader.h"
#include "data/datasets/dataset_table.h"
#include "metrics/step_metrics.h"
#include "model/networks/model_table.h"
#include "train/evaluation/eval_metric.h"
#include "train/hooks/hook.h"
#include "train/loss/loss.h"

namespace lockstep {

/// What is trained, in one class: a network, and what else the subclass brings. Everything that it
/// does not bring is the run file's. Only model() must be there.
///
/// Each rank has one object. Calls, by the main thread, the same on all ranks: read_flags(); then
/// loss(), metrics(), eval_metrics() and hooks() once each; then input() and model(). It lives to
/// the end of the run. What a method throws ends the run on all ranks: an Error with its exit code,
/// else 78.
class EstimatorSpec {
 public:
  EstimatorSpec() = default;
  virtual ~EstimatorSpec() = default;
  EstimatorSpec(const EstimatorSpec&) = delete;
  EstimatorSpec& operator=(const EstimatorSpec&) = delete;

  /// Reads flags of its own, strictly, each with default, range and help:
  ///
  ///   in->read("width", &width_, count_from(1), "outputs of the hidden layer");
  ///
  /// from section `estimator` of the run file, from --set estimator.width=64 and from the command
  /// line behind `--`: -- --width 64. `path` and `name` are taken. Also called, on an object of its
  /// own, to list the flags: it reads and does nothing else.
  virtual void read_flags(ConfigReader* /*in*/) {}

  /// The network, for data of this shape. The same initial values on every rank: from data.seed.
  virtual std::unique_ptr<model::Model> model(const model::ModelInputs& data) = 0;

  /// The data set where the run file says `data: {train: {type: estimator}}`, or `eval`. Training
  /// and evaluation data must be alike in shape. Called once for each. The default has none.
  virtual std::unique_ptr<data::Dataset> input(data::DatasetUse use,
                                               const data::DatasetInputs& inputs);

  /// What is minimised while train.loss of the run file is `auto`: a loss of its own, or one of the
  /// table, *train::loss_types().find("binary"), whose name then means that row. The default leaves
  /// it to the data's targets.
  virtual std::optional<train::LossType> loss() { return std::nullopt; }

  /// Series for the metrics page, from the numbers of each step.
  virtual std::vector<metrics::StepMetric> metrics() { return {}; }

  /// Metrics of evaluations, which eval.metrics of the run file may then name.
  virtual std::vector<train::EvalMetricType> eval_metrics() { return {}; }

  /// Code around the steps of training; each makes one hook when the run begins. (Callbacks are
  /// rows of coord::callback_types(), which a plug-in adds.)
  virtual std::vector<train::MakeHook> hooks() { return {}; }
};

namespace estimator {

/// One row: an estimator that `estimator.name` of the run file may name. `value` makes one.
struct EstimatorType {
  std::string name;
  std::function<std::unique_ptr<EstimatorSpec>()> value;
};

/// The table. Lockstep has none of its own in it; plug-ins and programs that embed Lockstep add
/// theirs.
NamedTable<EstimatorType>& estimator_types();

}  // namespace estimator
}  // namespace lockstep
