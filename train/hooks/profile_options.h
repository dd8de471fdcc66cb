#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/yaml/config_reader.h"

namespace lockstep::train {

/// Selects the steps to trace: `trainer.run_config.profile_hook_config` of the run file, with the
/// names of TensorFlow's ProfilerHook.
struct ProfileOptions {
  std::optional<int64_t> save_steps;  ///< each step whose number is a multiple
  std::optional<double> save_secs;    ///< alternatively: the next step after this time, by rank 0's
                                      ///< clock
  bool show_memory = false;           ///< include allocations
  bool show_dataflow = true;          ///< include arrows from forward to backward operators
  std::vector<int64_t> ranks;         ///< traced ranks; empty: all
};

/// Returns nullopt if the section is missing.
std::optional<ProfileOptions> read_profile_options(ConfigReader* run_config);

}  // namespace lockstep::train
