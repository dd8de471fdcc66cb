#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace lockstep {

/// Limits of a container, or of any other control group of this process. Limits of outer groups
/// apply too: the smallest counts.
struct CgroupLimits {
  std::optional<double> cores;          ///< CPU quota / period: 1.5 for a limit of `1500m`
  std::optional<int64_t> memory_bytes;  ///< limit above which a process is killed
};

/// Reads the limits on Linux, control groups v1 and v2, also both at once. `root` is prepended to
/// /proc and /sys.
CgroupLimits cgroup_limits(const std::filesystem::path& root = "/");

/// Returns the memory in bytes of this host, or of the container if that is less.
int64_t usable_memory_bytes();

}  // namespace lockstep
