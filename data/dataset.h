#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/yaml/config_reader.h"

namespace lockstep::data {

/// Some samples, in the order asked for. Symbols: B = samples, X = the shape of one input.
struct Examples {
  at::Tensor inputs_BX;  ///< float32, CPU
  at::Tensor targets_B;  ///< int64 class numbers, CPU
};

/// An indexable set of samples. Same content on every rank; safe to read from several threads.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual int64_t num_samples() const = 0;
  virtual int64_t num_classes() const = 0;
  /// Shape X of one input.
  virtual std::vector<int64_t> input_shape() const = 0;
  /// Each index in [0, num_samples()).
  virtual Examples get(std::span<const int64_t> indices_B) const = 0;
  /// Tells data sets of different content apart: SHA-256 in hex.
  virtual std::string digest() const = 0;
};

/// One data set of the run file (data.train, data.eval).
struct DatasetOptions {
  std::string type = "digits";         ///< digits | random
  std::string split = "train";         ///< digits: train | test
  std::string path;                    ///< digits: a CSV file instead of the built-in copy
  std::vector<int64_t> shape = {784};  ///< random: shape of one input
  int64_t classes = 10;                ///< random
  int64_t samples = 4096;              ///< random
  int64_t seed = 0;                    ///< random: which numbers
};

DatasetOptions read_dataset_options(ConfigReader in, DatasetOptions defaults);

/// Throws Error(kInputMissing or kBadData) if a file is missing or malformed; the text names file
/// and line.
std::unique_ptr<Dataset> make_dataset(const DatasetOptions& options);

}  // namespace lockstep::data
