#pragma once

#include "data/datasets/dataset_table.h"
#include "data/datasets/memory_dataset.h"

namespace lockstep::data {

/// UCI handwritten digits (data/digits/README.md): inputs [1, 8, 8] in [0, 1], 10 classes.
class DigitsDataset final : public MemoryDataset {
 public:
  /// split: train | test. path: a CSV file of the same form; empty: the built-in copy. Throws
  /// Error(kInputMissing) for a missing file, Error(kBadData) with the line for a malformed one.
  DigitsDataset(const std::string& split, const std::string& path);
};

DatasetType digits_type();

}  // namespace lockstep::data
