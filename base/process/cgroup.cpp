// The group's path is in /proc/self/cgroup, the mount points are in /proc/self/mountinfo; see
// cgroups(7).
#include "base/process/cgroup.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <unistd.h>

#include "base/process/proc.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// Mounted hierarchy of groups.
struct Hierarchy {
  fs::path shown_group;  ///< group that is visible at the mount point
  fs::path mount_point;
  bool is_v2 = false;
};

/// Parses a number at the start of a text; nullopt for "max" and other words.
std::optional<double> number_of(const std::string& text) {
  std::istringstream in(text);
  double value = 0;
  return in >> value ? std::optional(value) : std::nullopt;
}

/// True if a comma-separated list contains this word.
bool lists(const std::string& words, const std::string& word) {
  return ("," + words + ",").find("," + word + ",") != std::string::npos;
}

/// Returns the hierarchies by controller ("cpu", "memory"); "" is that of v2.
std::map<std::string, Hierarchy> hierarchies(const fs::path& root) {
  std::map<std::string, Hierarchy> found;
  std::ifstream mounts(root / "proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream head(line), tail(line.substr(dash + 3));
    std::string id, parent, device, group, point, type, source, options;
    head >> id >> parent >> device >> group >> point;
    tail >> type >> source >> options;
    // The first mount counts, if a hierarchy is mounted several times.
    if (type == "cgroup2") found.try_emplace("", Hierarchy{group, point, true});
    for (const char* controller : {"cpu", "memory"})
      if (type == "cgroup" && lists(options, controller))
        found.try_emplace(controller, Hierarchy{group, point, false});
  }
  return found;
}

/// Returns this process's group by controller; "" is that of v2.
std::map<std::string, fs::path> own_groups(const fs::path& root) {
  std::map<std::string, fs::path> found;
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // 4:cpu,cpuacct:/pod/container, 0::/pod
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path group = line.substr(second + 1);
    if (controllers.empty()) found[""] = group;
    for (const char* controller : {"cpu", "memory"})
      if (lists(controllers, controller)) found[controller] = group;
  }
  return found;
}

/// Returns the folders of the group and its visible outer groups. A container may see its own group
/// at the mount point while the kernel names it from further outside. The reverse occurs too.
std::vector<fs::path> folders(const fs::path& root, const Hierarchy& hierarchy,
                              const fs::path& group) {
  const fs::path mount = root / hierarchy.mount_point.relative_path();
  const fs::path below = group.lexically_relative(hierarchy.shown_group);
  const bool is_below = !below.empty() && *below.begin() != ".." && below != ".";
  std::vector<fs::path> all{mount};
  fs::path at = mount;
  if (is_below)
    for (const fs::path& part : below) all.push_back(at /= part);
  return all;
}

/// Returns a folder's CPU quota in cores; nullopt without one.
std::optional<double> cores_of(const fs::path& folder, bool is_v2) {
  if (is_v2) {  // "200000 100000", "max 100000"
    std::istringstream in(first_line(folder / "cpu.max"));
    double quota_us = 0, period_us = 0;
    if (!(in >> quota_us >> period_us) || period_us <= 0) return std::nullopt;
    return quota_us / period_us;
  }
  const auto quota_us = number_of(first_line(folder / "cpu.cfs_quota_us"));  // -1: no limit
  const auto period_us = number_of(first_line(folder / "cpu.cfs_period_us"));
  if (!quota_us || !period_us || *quota_us <= 0 || *period_us <= 0) return std::nullopt;
  return *quota_us / *period_us;
}

/// Returns a folder's memory limit in bytes; nullopt without one.
std::optional<double> memory_of(const fs::path& folder, bool is_v2) {
  constexpr double kNone = 1e18;  // v1 shows a number near 2^63 without a limit
  const auto bytes =
      number_of(first_line(folder / (is_v2 ? "memory.max" : "memory.limit_in_bytes")));
  return bytes && *bytes < kNone ? bytes : std::nullopt;
}

/// Returns the smallest limit of this process's group and all its outer groups.
template <class Read>
std::optional<double> smallest(const fs::path& root, const char* controller, Read read) {
  const auto mounted = hierarchies(root);
  const auto own = own_groups(root);
  std::optional<double> least;
  for (const char* name : {controller, ""}) {
    const auto hierarchy = mounted.find(name);
    const auto group = own.find(name);
    if (hierarchy == mounted.end() || group == own.end()) continue;
    for (const fs::path& folder : folders(root, hierarchy->second, group->second))
      if (const auto limit = read(folder, hierarchy->second.is_v2))
        least = std::min(least.value_or(*limit), *limit);
  }
  return least;
}

}  // namespace

CgroupLimits cgroup_limits(const fs::path& root) {
  CgroupLimits limits{.cores = smallest(root, "cpu", cores_of), .memory_bytes = {}};
  if (const auto bytes = smallest(root, "memory", memory_of))
    limits.memory_bytes = static_cast<int64_t>(*bytes);
  return limits;
}

int64_t usable_memory_bytes() {
  const int64_t host_bytes =
      static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  return std::min(host_bytes, cgroup_limits().memory_bytes.value_or(host_bytes));
}

}  // namespace lockstep
