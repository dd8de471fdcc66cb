#pragma once

#include <cstdint>

#include "data/datasets/dataset.h"
#include "data/sampler.h"

namespace lockstep::data {

/// This rank's part of one global batch.
struct Batch {
  Samples samples;                 ///< may hold 0 samples in an epoch's last batch
  int64_t global_num_samples = 0;  ///< over all ranks
};

/// Takes global batches from the sampler and loads rank r's contiguous share of each. One caller at
/// a time.
class Loader {
 public:
  Loader(const Dataset& dataset, Sampler& sampler, int rank, int world_size)
      : dataset_(dataset), sampler_(sampler), rank_(rank), world_size_(world_size) {}

  Batch next();

 private:
  const Dataset& dataset_;
  Sampler& sampler_;
  int rank_;
  int world_size_;
};

}  // namespace lockstep::data
