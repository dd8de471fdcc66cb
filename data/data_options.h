#pragma once

#include <algorithm>
#include <optional>

#include "base/files/file_store.h"
#include "data/datasets/dataset_table.h"
#include "data/loader.h"

namespace lockstep::data {

/// Section `data` of the run file.
struct DataOptions {
  DatasetOptions train;                      ///< its `make` is empty where it is not given
  std::optional<DatasetOptions> eval;        ///< absent or null: no evaluation
  std::optional<int64_t> global_batch_size;  ///< exactly one of the two
  std::optional<int64_t> batch_size_per_rank;
  bool shuffle = true;
  bool drop_last = false;
  std::optional<int64_t> loader_threads;  ///< absent: 1 where the data set gains by it
  int64_t prefetch_batches = 2;
  bool skips_damaged = false;  ///< on_error: skip
  int64_t max_skipped = 100;   ///< damaged samples of an epoch
  files::StoreLimits remote;

  /// Of a loader that reads this data set for that device.
  LoaderOptions loader(const Dataset& dataset, at::Device device = at::kCPU) const {
    // A step on a GPU is short: a thread is worth its while also where samples are in memory.
    const int64_t usual = std::max<int64_t>(dataset.usual_threads(), device.is_cpu() ? 0 : 1);
    const int64_t threads = loader_threads.value_or(usual);
    if (!dataset.reads_in_threads()) return {.num_threads = 0, .device = device};
    // Where a read may take long, a thread does it while the caller waits, who can then leave.
    if (threads == 0 && dataset.usual_threads() > 0)
      return {.num_threads = 1, .prefetch_batches = 0, .device = device};
    return {.num_threads = threads, .prefetch_batches = prefetch_batches, .device = device};
  }

  /// Opens `train`, or `eval`, which must be there, for inputs.use. Throws as MakeDataset.
  std::unique_ptr<Dataset> open_train(const DatasetInputs& inputs) const;
  std::unique_ptr<Dataset> open_eval(const DatasetInputs& inputs) const;

  int64_t global_batch(int world_size) const {
    return global_batch_size ? *global_batch_size : *batch_size_per_rank * world_size;
  }
};

/// `needs_train`: whether it is a fault if data.train is not given.
DataOptions read_data_options(ConfigReader in, bool needs_train = true);

}  // namespace lockstep::data
