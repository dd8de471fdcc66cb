#pragma once

#include "data/datasets/dataset_table.h"
#include "data/datasets/memory_dataset.h"

namespace lockstep::data {

struct RandomOptions {
  std::vector<int64_t> shape = {784};  ///< shape of one input
  int64_t classes = 10;
  int64_t samples = 4096;
  int64_t seed = 0;    ///< seed of the numbers
  int64_t tokens = 0;  ///< vocabulary; 0: inputs are numbers
};

/// Uniform noise in [-1, 1) with random labels, or random tokens with the next token as target. For
/// benchmarks, where only shapes matter. The numbers are a pure function of (seed, sample,
/// position).
class RandomDataset final : public MemoryDataset {
 public:
  explicit RandomDataset(const RandomOptions& options);
  RandomDataset(const std::vector<int64_t>& shape, int64_t num_classes, int64_t num_samples,
                int64_t seed);
};

DatasetType random_type();

}  // namespace lockstep::data
