#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/yaml/config_reader.h"
#include "checkpoint/warm_start_options.h"

namespace lockstep::checkpoint {

/// Section `checkpoint` of the run file. At most one of the two intervals is given.
struct CheckpointOptions {
  std::string prefix = "model.ckpt";              ///< file name of checkpoints in the run's folder
  std::optional<int64_t> save_checkpoints_steps;  ///< optimizer updates between two checkpoints
  std::optional<int64_t> save_checkpoints_secs;   ///< seconds between them, by rank 0's clock
  int64_t keep_checkpoint_max = 5;                ///< newest checkpoints to keep; -1 keeps all
  bool save_at_end = true;
  bool enabled = true;             ///< false (`checkpoint: off`): nothing is saved or restored
  int64_t keep_every = 0;          ///< multiples of this step are never removed; 0: none
  std::string keep_best = "none";  ///< none | eval.accuracy | eval.loss: the best checkpoint stays
  std::vector<std::string> include = {"model", "optimizer", "modifiers", "clock", "random"};
  bool sparse = false;              ///< store only the kept elements of pruned tensors
  std::string wait_for = "update";  ///< update | staging | commit: how long training waits
  double timeout_s = 1800;  ///< longest wait of a rank for the others inside a save, in seconds

  WarmStartOptions warm_start;

  bool includes(std::string_view part) const;

  /// Default interval in seconds, used if neither interval is given.
  static constexpr int64_t kDefaultSecs = 600;
};

/// Reads the section and records faults in the reader's list.
CheckpointOptions read_checkpoint_options(ConfigReader in);

}  // namespace lockstep::checkpoint
