#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/yaml/config_reader.h"
#include "data/data_options.h"
#include "estimator/estimator_spec.h"
#include "model/networks/model_table.h"
#include "train/hooks/hook.h"
#include "train/step/train_options.h"

/// Section `estimator` of a run file, and what it means for the other sections.
namespace lockstep::estimator {

/// The section, read. Without one, an estimator that brings nothing.
class Estimator {
 public:
  /// Opens the plug-in that `estimator.path` names, makes the estimator, reads its flags, and adds
  /// its loss and its metrics to their tables. Faults go where `in`, the whole run file, sends
  /// them; throws as open_plugin() does, and what the estimator throws.
  static Estimator read(ConfigReader* in);

  bool is_there() const { return spec_ != nullptr; }
  const std::string& name() const { return name_; }

  /// The estimator's network, or what section `model` says; both are a fault.
  model::ModelOptions read_model(ConfigReader* in) const;
  /// Puts its data sets where type `estimator` stands.
  void put_into(data::DataOptions* data) const;
  /// Puts its loss where `auto` stands.
  void put_into(train::TrainOptions* train) const;
  /// Adds its hooks.
  void put_into(std::vector<train::MakeHook>* hooks) const;

 private:
  void add_rows();
  data::MakeDataset make_input(data::DatasetUse use) const;

  std::string name_, where_;
  std::shared_ptr<EstimatorSpec> spec_;  // null: none
  std::string loss_;                     // empty: none of its own
  std::vector<train::MakeHook> hooks_;
};

/// Adds the rows `plugin` (networks) and `estimator` (data sets) to their tables, once; whoever
/// reads run files calls it first.
void add_types();

/// Opens the plug-ins that a run file names: `plugins`, `model.path` of type plugin,
/// `estimator.path`. Its other keys can be read only then, as they may be those of rows that
/// plug-ins add. Returns for each "plugin PATH sha256=...", to be compared between ranks. Throws as
/// open_plugin().
std::vector<std::string> open_plugins_of(const YamlDocument& document);

}  // namespace lockstep::estimator
