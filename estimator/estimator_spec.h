#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/named_table.h"
#include "base/yaml/config_reader.h"
#include "data/dataset_table.h"
#include "metrics/step_metrics.h"
#include "model/networks/model_table.h"
#include "train/eval_metrics.h"
#include "train/hook.h"
#include "train/loss/loss.h"

namespace lockstep {

/// Definition of what is trained: a network, and whatever else the subclass provides. Everything
/// else comes from the run file. Only model() is required.
///
/// Each rank has one object. The main thread calls its methods in the same order on all ranks.
/// First read_flags(); then loss(), metrics(), eval_metrics() and hooks() once each; then input()
/// and model(). The object lives until the end of the run. An exception of a method ends the run on
/// all ranks, with the exit code of an Error, else 78.
class EstimatorSpec {
 public:
  EstimatorSpec() = default;
  virtual ~EstimatorSpec() = default;
  EstimatorSpec(const EstimatorSpec&) = delete;
  EstimatorSpec& operator=(const EstimatorSpec&) = delete;

  /// Reads its own flags, strictly, each with default, range and help:
  ///
  ///   in->read("width", &width_, count_from(1), "outputs of the hidden layer");
  ///
  /// They come from section `estimator` of the run file and from --set estimator.width=64. On the
  /// command line they follow `--`: -- --width 64. `path` and `name` are reserved. It is also
  /// called on a separate object to list the flags, so it must only read.
  virtual void read_flags(ConfigReader* /*in*/) {}

  /// Returns the network for data of this shape. Initial values must be the same on every rank:
  /// derive them from data.seed.
  virtual std::unique_ptr<model::Model> model(const model::ModelInputs& data) = 0;

  /// Returns the data set for `data: {train: {type: estimator}}` or `eval` of the run file.
  /// Training and evaluation data must have the same shape. Called once for each. The default
  /// provides none.
  virtual std::unique_ptr<data::Dataset> input(data::DatasetUse use,
                                               const data::DatasetInputs& inputs);

  /// Returns the loss to minimise if train.loss of the run file is `auto`. It is an own loss, or
  /// one of the table, such as *train::loss_types().find("binary"). The default chooses by the
  /// data's targets.
  virtual std::optional<train::LossType> loss() { return std::nullopt; }

  /// Returns series for the metrics page, computed from each step's statistics.
  virtual std::vector<metrics::StepMetric> metrics() { return {}; }

  /// Returns metrics of evaluations, which eval.metrics of the run file may name.
  virtual std::vector<train::EvalMetricType> eval_metrics() { return {}; }

  /// Returns hooks around training steps; each function makes one hook when the run begins.
  /// (Callbacks are rows of coord::callback_types(), which a plug-in adds.)
  virtual std::vector<train::MakeHook> hooks() { return {}; }
};

namespace estimator {

/// Row of an estimator that `estimator.name` of the run file may name. `value` makes one.
struct EstimatorType {
  std::string name;
  std::function<std::unique_ptr<EstimatorSpec>()> value;
};

/// Returns the table. Lockstep adds no rows; plug-ins and programs that embed Lockstep do.
NamedTable<EstimatorType>& estimator_types();

}  // namespace estimator
}  // namespace lockstep
