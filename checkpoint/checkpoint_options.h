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
  std::string prefix = "model.ckpt";  ///< file name of the saves inside the run's folder
  std::optional<int64_t> save_checkpoints_steps;  ///< optimizer updates between two saves
  std::optional<int64_t> save_checkpoints_secs;   ///< seconds between two saves, by rank 0's clock
  int64_t keep_checkpoint_max = 5;                ///< saves kept; -1 keeps all
  bool save_at_end = true;
  bool enabled = true;     ///< false (`checkpoint: off`): nothing is saved and nothing restored
  int64_t keep_every = 0;  ///< saves at multiples of so many steps are never removed; 0: none
  std::string keep_best = "none";  ///< none | eval.accuracy | eval.loss: the best save stays
  std::vector<std::string> include = {"model", "optimizer", "modifiers", "clock", "random"};
  bool sparse = false;              ///< of pruned tensors, store kept elements only
  std::string wait_for = "update";  ///< update | staging | commit: how long training waits
  double timeout_s = 1800;          ///< longest wait of a rank for the others inside a save

  WarmStartOptions warm_start;

  bool includes(std::string_view part) const;

  /// What holds when neither interval is given.
  static constexpr int64_t kDefaultSecs = 600;
};

/// Reads the section; faults go to the reader's list.
CheckpointOptions read_checkpoint_options(ConfigReader in);

}  // namespace lockstep::checkpoint
