#pragma once

#include <optional>

#include "data/datasets/dataset_table.h"

namespace lockstep::data {

/// Section `data` of the run file.
struct DataOptions {
  DatasetOptions train;
  std::optional<DatasetOptions> eval;        ///< absent or null: no evaluation
  std::optional<int64_t> global_batch_size;  ///< exactly one of the two
  std::optional<int64_t> batch_size_per_rank;
  bool shuffle = true;
  bool drop_last = false;

  int64_t global_batch(int world_size) const {
    return global_batch_size ? *global_batch_size : *batch_size_per_rank * world_size;
  }
};

DataOptions read_data_options(ConfigReader in);

}  // namespace lockstep::data
