#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace lockstep {

/// Limits of a container, or of any other control group that this process is in. A limit of a group
/// further up holds too: the smallest counts.
struct CgroupLimits {
  std::optional<double> cores;          ///< CPU quota / period, 1.5 of a limit `1500m`
  std::optional<int64_t> memory_bytes;  ///< above which a process is killed
};

/// Linux, control groups v1 and v2, also both at once. `root` is in front of /proc and /sys.
CgroupLimits cgroup_limits(const std::filesystem::path& root = "/");

/// Memory of this host, or of the container if that has less; bytes.
int64_t usable_memory_bytes();

}  // namespace lockstep
