#pragma once

#include "data/memory_dataset.h"

namespace lockstep::data {

/// Uniform noise in [-1, 1) with random labels: for benchmarks, where only shapes matter. The
/// numbers are a pure function of (seed, sample, position).
class RandomDataset final : public MemoryDataset {
 public:
  RandomDataset(const std::vector<int64_t>& shape, int64_t num_classes, int64_t num_samples,
                int64_t seed);
};

}  // namespace lockstep::data
