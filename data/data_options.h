#pragma once

#include <optional>

#include "data/datasets/dataset_table.h"
#include "data/loader.h"

namespace lockstep::data {

/// Section `data` of the run file.
struct DataOptions {
  DatasetOptions train;
  std::optional<DatasetOptions> eval;        ///< absent or null: no evaluation
  std::optional<int64_t> global_batch_size;  ///< exactly one of the two
  std::optional<int64_t> batch_size_per_rank;
  bool shuffle = true;
  bool drop_last = false;
  std::optional<int64_t> loader_threads;  ///< absent: 1 where the data set gains by it
  int64_t prefetch_batches = 2;

  /// Of a loader that reads this data set.
  LoaderOptions loader(const Dataset& dataset) const {
    const int64_t threads = loader_threads.value_or(dataset.usual_threads());
    return {.num_threads = dataset.reads_in_threads() ? threads : 0,
            .prefetch_batches = prefetch_batches};
  }

  int64_t global_batch(int world_size) const {
    return global_batch_size ? *global_batch_size : *batch_size_per_rank * world_size;
  }
};

DataOptions read_data_options(ConfigReader in);

}  // namespace lockstep::data
