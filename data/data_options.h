#pragma once

#include <algorithm>
#include <optional>

#include "base/files/files.h"
#include "data/dataset_table.h"
#include "data/loader.h"

namespace lockstep::data {

/// Section `data` of the run file.
struct DataOptions {
  DatasetOptions train;                      ///< `make` is empty if the section is missing
  std::optional<DatasetOptions> eval;        ///< missing or null: no evaluation
  std::optional<int64_t> global_batch_size;  ///< exactly one of the two
  std::optional<int64_t> batch_size_per_rank;
  bool shuffle = true;
  bool drop_last = false;
  std::optional<int64_t> loader_threads;  ///< default: 1 if the data set profits from it
  int64_t prefetch_batches = 2;
  bool skips_damaged = false;  ///< on_error: skip
  int64_t max_skipped = 100;   ///< damaged samples per epoch
  files::StoreLimits remote;

  /// Returns the options of a loader that reads this data set for that device.
  LoaderOptions loader(const Dataset& dataset, at::Device device = at::kCPU) const {
    // A step on a GPU is short, so a thread pays off even for samples in memory.
    const int64_t usual = std::max<int64_t>(dataset.usual_threads(), device.is_cpu() ? 0 : 1);
    const int64_t threads = loader_threads.value_or(usual);
    if (!dataset.reads_in_threads()) return {.num_threads = 0, .device = device};
    // A read may take long. A thread does it while the caller waits, so that the caller can leave.
    if (threads == 0 && dataset.usual_threads() > 0)
      return {.num_threads = 1, .prefetch_batches = 0, .device = device};
    return {.num_threads = threads, .prefetch_batches = prefetch_batches, .device = device};
  }

  /// Opens `train`, or `eval` (which must exist), for inputs.use. Throws as MakeDataset.
  std::unique_ptr<Dataset> open_train(const DatasetInputs& inputs) const;
  std::unique_ptr<Dataset> open_eval(const DatasetInputs& inputs) const;

  int64_t global_batch(int world_size) const {
    return global_batch_size ? *global_batch_size : *batch_size_per_rank * world_size;
  }
};

/// Reads the section. With `needs_train`, a missing data.train is a fault.
DataOptions read_data_options(ConfigReader in, bool needs_train = true);

}  // namespace lockstep::data
