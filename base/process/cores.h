#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep {

/// Physical core: those of its hardware threads that this process may use, ascending.
struct Core {
  int numa_node = 0;
  std::vector<int> cpus;
};

/// Returns the cores that this process may run on, ordered by NUMA node and number. Launchers and
/// schedulers narrow this affinity. Linux only; `sys_folder` is the kernel's description of the
/// processor.
std::vector<Core> allowed_cores(const std::filesystem::path& sys_folder = "/sys/devices/system");

/// Returns how many cores this process can keep busy, at least 1. It is allowed_cores(), or fewer
/// if its container has a CPU quota (base/process/cgroup.h).
int num_usable_cores();

/// Parses the kernel's list form: "0-3,8" -> 0, 1, 2, 3, 8. Any other text gives an empty list.
std::vector<int> parse_cpu_list(const std::string& text);
/// Returns the shortest text of that form.
std::string cpu_list(std::vector<int> cpus);

/// Returns the contiguous share of `cores` for one of `num_shares`. Sizes differ by at most one.
/// Each share has at least one core; with too few cores, several shares have the same one.
std::vector<Core> share_of_cores(const std::vector<Core>& cores, int share, int num_shares);

/// Returns all hardware threads of these cores.
std::vector<int> cpus_of(const std::vector<Core>& cores);

/// Binds this thread, and threads that it starts later, to these CPUs. False if the system refuses.
bool bind_this_thread(const std::vector<int>& cpus);

}  // namespace lockstep
