#pragma once

#include <optional>
#include <string>
#include <vector>

#include "daemon/config/command_result.h"
#include "daemon/config/overrides.h"

namespace lockstep::daemon {

inline constexpr int64_t kMostScaleRanks = 65536;

struct ScaleOptions {
  std::string file;  ///< a run file
  std::vector<Override> overrides;
  int64_t ranks = 0;  ///< --scale
  int64_t ranks_per_host = 1;
  std::optional<double> link_gbit, latency_us;  ///< needed for several hosts
  std::optional<double> disk_mbyte_s;           ///< nothing: the run's disk is timed
  std::string json_file;                        ///< also write it for programs
};

/// What a step is expected to cost on 1, 2, 4, ... ranks, from steps that are measured here, and
/// what stops scaling first. Throws Error(kUsage) for numbers that make no sense.
CommandResult scale_command(const ScaleOptions& options);

}  // namespace lockstep::daemon
