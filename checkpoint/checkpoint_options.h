#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/yaml_fields.h"

namespace lockstep::checkpoint {

/// Section `checkpoint` of the run file. At most one of the two intervals is given.
struct CheckpointOptions {
  std::string prefix = "model.ckpt";  ///< file name of the saves inside the run's folder
  std::optional<int64_t> save_checkpoints_steps;  ///< optimizer updates between two saves
  std::optional<int64_t> save_checkpoints_secs;   ///< seconds between two saves, by rank 0's clock
  int64_t keep_checkpoint_max = 5;                ///< saves kept; -1 keeps all
  bool save_at_end = true;

  /// What holds when neither interval is given.
  static constexpr int64_t kDefaultSecs = 600;
};

/// Reads the section; faults go to the reader's list.
CheckpointOptions read_checkpoint_options(YamlFields in);

}  // namespace lockstep::checkpoint
