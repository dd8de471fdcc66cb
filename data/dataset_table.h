#pragma once

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/named_table.h"
#include "base/yaml/config_reader.h"
#include "data/dataset.h"

/// Table of data sets for `data.train.type` and `data.eval.type`, and Lockstep's own rows.
namespace lockstep::data {

enum class DatasetUse {
  kTraining,
  kEvaluation,
  kInference,  ///< predictions only: samples need no targets
};

/// Inputs for opening a data set.
struct DatasetInputs {
  int64_t seed = 0;  ///< run.seed, for random changes of samples
  /// Result of the plan's `find` on rank 0; empty: the data set searches its files itself.
  std::string found = {};
  /// Spec of the training set when another set is opened. Class folders take their numbers from its
  /// class_names. Empty names: unknown, or this is the training set.
  SampleSpec trained = {};
  /// Purpose. With kInference, samples are read without augmentation and damaged ones are left out.
  /// That holds even for a section that was read for training.
  DatasetUse use = DatasetUse::kTraining;
  bool skips_damaged = false;  ///< data.on_error: skip
  bool own_loss = false;       ///< train.loss: own: only the network reads the targets
};

/// Function that opens a data set with the options that were read for it. Throws
/// Error(kInputMissing or kBadData) if a file is missing or malformed, naming file and line.
using MakeDataset = std::function<std::unique_ptr<Dataset>(const DatasetInputs& inputs)>;

/// Function that lists what only one rank should list (patterns, folders, stores), as a text for
/// `make`. Called by rank 0 alone. Throws as MakeDataset.
using FindDataset = std::function<std::string()>;

/// Functions that the options of a data set lead to.
struct DatasetPlan {
  DatasetPlan() = default;
  /// Makes a plan of a function that MakeDataset can hold; most rows need nothing else.
  template <typename Make, typename = std::enable_if_t<std::is_convertible_v<Make, MakeDataset>>>
  // NOLINTNEXTLINE(google-explicit-constructor): a function alone is a plan
  DatasetPlan(Make make_, FindDataset find_ = {})
      : make(std::move(make_)), find(std::move(find_)) {}

  MakeDataset make;
  FindDataset find;  ///< empty if there is nothing to list
};

/// Section `data.train` or `data.eval` of the run file: a data set with its options.
struct DatasetOptions : DatasetPlan {
  std::string type = "digits";
};

/// One row of the table. A new data set needs a class derived from Dataset and a row:
///
///   dataset_types().add({"my_set", [](ConfigReader* in, DatasetUse) -> MakeDataset {
///     std::string path;
///     in->read("path", &path, "my_set: the file");
///     return [path](const DatasetInputs&) { return std::make_unique<MySet>(path); };
///   }});
struct DatasetType {
  std::string name;
  /// Reads this data set's keys of the section; each `help` begins with the type's name.
  std::function<DatasetPlan(ConfigReader* in, DatasetUse use)> read;
};

/// Returns the table; Lockstep's own data sets are its first rows.
NamedTable<DatasetType>& dataset_types();

/// Reads the section; the default `type` is digits. Faults go to the list of `in`.
DatasetOptions read_dataset_options(ConfigReader in, DatasetUse use);

/// UCI handwritten digits (data/digits/README.md): inputs [1, 8, 8] in [0, 1], 10 classes.
class DigitsDataset final : public MemoryDataset {
 public:
  /// split: train | test. path: a CSV file of the same form; empty: the built-in copy. Throws
  /// Error(kInputMissing) for a missing file, Error(kBadData) with the line for a malformed one.
  DigitsDataset(const std::string& split, const std::string& path);
};

DatasetType digits_type();

struct RandomOptions {
  std::vector<int64_t> shape = {784};  ///< shape of one input
  int64_t classes = 10;
  int64_t samples = 4096;
  int64_t seed = 0;    ///< seed of the numbers
  int64_t tokens = 0;  ///< vocabulary; 0: inputs are numbers
};

/// Uniform noise in [-1, 1) with random labels, or random tokens with the next token as target. For
/// benchmarks, where only shapes matter. Numbers are a pure function of (seed, sample, place).
class RandomDataset final : public MemoryDataset {
 public:
  explicit RandomDataset(const RandomOptions& options);
  RandomDataset(const std::vector<int64_t>& shape, int64_t num_classes, int64_t num_samples,
                int64_t seed);
};

DatasetType random_type();

/// Returns the rows `files`, which detects the format, and one for each format: idx, cifar10,
/// cifar100, image_folder, images, image_csv, tfrecord, npy, safetensors, tokens, webdataset.
std::vector<DatasetType> files_types();

}  // namespace lockstep::data
