#pragma once

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "base/named_table.h"
#include "base/yaml/config_reader.h"
#include "data/datasets/dataset.h"

/// Table of the data sets that `data.train.type` and `data.eval.type` of a run file may name.
namespace lockstep::data {

enum class DatasetUse {
  kTraining,
  kEvaluation,
  kInference,  ///< samples are answered: they need no targets
};

/// What a data set is opened for.
struct DatasetInputs {
  int64_t seed = 0;  ///< run.seed: of what is random in its samples
  /// What the plan's `find` gave on rank 0; empty: the data set looks for its files itself.
  std::string found = {};
  /// Spec of the training set if another set is opened: folders of classes take the numbers of its
  /// class_names. Empty names: unknown, or this is the training set.
  SampleSpec trained = {};
  /// kInference: samples are read without augmentation, and damaged ones are left out, also of a
  /// section that was read for training.
  DatasetUse use = DatasetUse::kTraining;
  bool skips_damaged = false;  ///< data.on_error: skip
  bool own_loss = false;       ///< train.loss: own: the network alone reads the targets
};

/// Opens a data set with the options that were read for it. Throws Error(kInputMissing or kBadData)
/// if a file is missing or malformed; the text names file and line.
using MakeDataset = std::function<std::unique_ptr<Dataset>(const DatasetInputs& inputs)>;

/// Lists what must not be listed once a rank (patterns, folders, stores), as a text for `make`.
/// Called by rank 0 alone. Throws as MakeDataset does.
using FindDataset = std::function<std::string()>;

/// What the options of a data set come to.
struct DatasetPlan {
  DatasetPlan() = default;
  /// From any function that MakeDataset can hold: most rows give nothing else.
  template <typename Make, typename = std::enable_if_t<std::is_convertible_v<Make, MakeDataset>>>
  // NOLINTNEXTLINE(google-explicit-constructor): a function alone is a plan
  DatasetPlan(Make make_, FindDataset find_ = {})
      : make(std::move(make_)), find(std::move(find_)) {}

  MakeDataset make;
  FindDataset find;  ///< empty where there is nothing to list
};

/// Section `data.train` or `data.eval` of the run file, read: a data set and its options.
struct DatasetOptions : DatasetPlan {
  std::string type = "digits";
};

/// One row. To add a data set: a class derived from Dataset, its row, and
///
///   dataset_types().add({.name = "my_set", .read = [](ConfigReader* in, DatasetUse) -> MakeDataset
///   {
///     std::string path;
///     in->read("path", &path, "my_set: the file");
///     return [path](const DatasetInputs&) { return std::make_unique<MySet>(path); };
///   }});
struct DatasetType {
  std::string name;
  /// Reads the keys of the section that are this data set's, each `help` beginning with its name.
  std::function<DatasetPlan(ConfigReader* in, DatasetUse use)> read;
};

/// The table; Lockstep's own data sets are its first rows.
NamedTable<DatasetType>& dataset_types();

/// Reads the section; without a `type`, the digits. Faults go where `in` sends them.
DatasetOptions read_dataset_options(ConfigReader in, DatasetUse use);

}  // namespace lockstep::data
