#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/yaml/config_reader.h"

namespace lockstep::train {

/// `trainer.run_config.profile_hook_config` of the run file, with the names of TensorFlow's
/// ProfilerHook: which steps leave a trace.
struct ProfileOptions {
  std::optional<int64_t> save_steps;  ///< each step whose number is a multiple of it
  std::optional<double> save_secs;    ///< or: the next step after so long, by rank 0's clock
  bool show_memory = false;           ///< also what is allocated and freed
  bool show_dataflow = true;          ///< also arrows from forward to backward operators
  std::vector<int64_t> ranks;         ///< whose; empty: all
};

/// Nothing where the section is not there.
std::optional<ProfileOptions> read_profile_options(ConfigReader* run_config);

}  // namespace lockstep::train
