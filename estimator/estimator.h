#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/yaml/config_reader.h"
#include "data/data_options.h"
#include "estimator/estimator_spec.h"
#include "model/networks/model_table.h"
#include "train/hook.h"
#include "train/loss/loss.h"

/// Section `estimator` of a run file, and its effect on the other sections.
namespace lockstep::estimator {

/// Section as read. Without the section, an estimator that provides nothing.
class Estimator {
 public:
  /// Opens the plug-in of `estimator.path`, makes the estimator, reads its flags, and adds its loss
  /// and metrics to their tables. Faults go to the list of `in`, the entire run file. Throws as
  /// open_plugin(), and what the estimator throws.
  static Estimator read(ConfigReader* in);

  bool is_there() const { return spec_ != nullptr; }
  const std::string& name() const { return name_; }

  /// Returns the estimator's network, or the one of section `model`; both together are a fault.
  model::ModelOptions read_model(ConfigReader* in) const;
  /// Sets its data sets for the type `estimator`.
  void put_into(data::DataOptions* data) const;
  /// Sets its loss if train.loss is `auto`.
  void put_into(train::TrainOptions* train) const;
  /// Adds its hooks.
  void put_into(std::vector<train::MakeHook>* hooks) const;

 private:
  void add_rows();
  data::MakeDataset make_input(data::DatasetUse use) const;

  std::string name_, where_;
  std::shared_ptr<EstimatorSpec> spec_;  // null: none
  std::string loss_;                     // empty: no own loss
  std::vector<train::MakeHook> hooks_;
};

/// Adds the rows `plugin` (networks) and `estimator` (data sets) to their tables, once. A reader of
/// run files must call it first.
void add_types();

/// Opens the plug-ins that a run file names: `plugins`, `model.path` of type plugin,
/// `estimator.path`. Other keys can be read only afterwards, because they may belong to rows of
/// plug-ins. Returns "plugin PATH sha256=..." for each, for comparison between ranks. Throws as
/// open_plugin().
std::vector<std::string> open_plugins_of(const YamlDocument& document);

}  // namespace lockstep::estimator
