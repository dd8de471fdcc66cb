#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep {

/// One physical core: the hardware threads of it that this process may use, ascending.
struct Core {
  int numa_node = 0;
  std::vector<int> cpus;
};

/// The cores that this process may run on (its affinity, which launchers and schedulers narrow), by
/// NUMA node and number. Linux; `sys_folder` is where the kernel describes the processor.
std::vector<Core> allowed_cores(const std::filesystem::path& sys_folder = "/sys/devices/system");

/// Cores that this process can keep busy, 1 at least: allowed_cores(), or fewer where its container
/// has a CPU quota (base/process/cgroup.h).
int num_usable_cores();

/// Numbers in the kernel's list form: "0-3,8" -> 0, 1, 2, 3, 8. What is no such list gives none.
std::vector<int> parse_cpu_list(const std::string& text);
/// The reverse, shortest form.
std::string cpu_list(std::vector<int> cpus);

/// The contiguous share of `cores` that belongs to one of `num_shares`: sizes differ by at most
/// one, and each has at least one (then shared by several).
std::vector<Core> share_of_cores(const std::vector<Core>& cores, int share, int num_shares);

/// All hardware threads of these cores.
std::vector<int> cpus_of(const std::vector<Core>& cores);

/// From now on this thread, and threads started by it, run on these only. False if the system
/// refuses.
bool bind_this_thread(const std::vector<int>& cpus);

}  // namespace lockstep
