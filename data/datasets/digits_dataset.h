#pragma once

#include "data/datasets/dataset_table.h"
#include "data/datasets/memory_dataset.h"

namespace lockstep::data {

/// The UCI handwritten digits (data/digits/README.md): inputs [1, 8, 8] in [0, 1], 10 classes.
class DigitsDataset final : public MemoryDataset {
 public:
  /// split: train | test. path: a CSV file of the same form; empty: the copy inside the program.
  /// Throws Error(kInputMissing) if the file is not there, Error(kBadData) naming the line that is
  /// malformed.
  DigitsDataset(const std::string& split, const std::string& path);
};

DatasetType digits_type();

}  // namespace lockstep::data
