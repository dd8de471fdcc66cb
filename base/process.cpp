#include "base/process.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <sstream>
#include <string_view>
#include <tuple>

#include <dlfcn.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/wait.h>

#include "base/text.h"

namespace lockstep {
namespace {

/// Head of the list of states. Only objects at namespace scope set it, before main().
const ProcessState*& newest() {
  static const ProcessState* one = nullptr;
  return one;
}

// Limits of the control group. The group's path is in /proc/self/cgroup, the mount points are in
// /proc/self/mountinfo; see cgroups(7).

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

/// Returns the CPUs of this process's affinity mask.
std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  return cpus;
}

/// Returns the node of each CPU; a CPU without a node is missing.
std::map<int, int> numa_nodes(const std::filesystem::path& sys_folder) {
  std::map<int, int> node_of;
  for (const int node : parse_cpu_list(first_line(sys_folder / "node/online")))
    for (const int cpu :
         parse_cpu_list(first_line(sys_folder / fmt::format("node/node{}/cpulist", node))))
      node_of[cpu] = node;
  return node_of;
}

}  // namespace

ProcessState::ProcessState(const char* name, Reset reset) noexcept
    : name_(name), reset_(reset), next_(newest()) {
  newest() = this;
}

void ProcessState::begin_job() {
  for (const ProcessState* one = newest(); one != nullptr; one = one->next_) one->reset_();
}

std::string shell_quoted(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  // A quote ends the quoted text, adds an escaped quote and starts again.
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

ShellResult run_in_shell(const std::string& command) {
  ShellResult result;
  FILE* const pipe = ::popen((command + " </dev/null").c_str(), "re");
  if (pipe == nullptr) return result;
  std::array<char, 4096> part{};
  while (const size_t count = std::fread(part.data(), 1, part.size(), pipe))
    result.text.append(part.data(), count);
  const int status = ::pclose(pipe);
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  return result;
}

// A file of the kernel has no size, so it is read as a stream.
std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

int64_t start_ticks_of(int64_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string stat;
  // Not by stream iterators, which throw if the process ends between open and read.
  std::getline(file, stat, '\0');
  const size_t name_end = stat.rfind(')');  // the name may contain any characters
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(stat.substr(name_end + 1));
  std::string field;
  if (fields >> field && (field == "Z" || field == "X")) return 0;  // dead, not yet reaped
  // Field 22 of /proc/PID/stat is the start time (proc(5)).
  for (int i = 4; i < 22; ++i) fields >> field;
  int64_t ticks = 0;
  return fields >> ticks ? ticks : 0;
}

std::string dl_error() {
  const char* text = ::dlerror();
  return text == nullptr ? "unknown reason" : text;
}

std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

double resident_bytes() {
  // statm counts in pages: total, resident, ...
  std::istringstream pages(first_line("/proc/self/statm"));
  double all = 0, resident = 0;
  if (!(pages >> all >> resident)) return 0;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

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

std::vector<Core> allowed_cores(const std::filesystem::path& sys_folder) {
  const std::map<int, int> node_of = numa_nodes(sys_folder);
  std::map<std::tuple<int, int>, Core> cores;  // by node and first sibling
  for (const int cpu : allowed_cpus()) {
    const auto node = node_of.find(cpu);
    const int numa_node = node == node_of.end() ? 0 : node->second;
    const std::vector<int> siblings = parse_cpu_list(
        first_line(sys_folder / fmt::format("cpu/cpu{}/topology/thread_siblings_list", cpu)));
    // All CPUs of a core list the same first sibling, so it identifies the core.
    const int first = siblings.empty() ? cpu : siblings.front();
    Core& core = cores[{numa_node, first}];
    core.numa_node = numa_node;
    core.cpus.push_back(cpu);
  }
  std::vector<Core> in_order;
  // A std::map keeps the order by node and number.
  for (auto& [place, core] : cores) in_order.push_back(std::move(core));
  return in_order;
}

int num_usable_cores() {
  const auto allowed = static_cast<double>(allowed_cores().size());
  const double usable = std::min(allowed, cgroup_limits().cores.value_or(allowed));
  return std::max(1, static_cast<int>(usable));
}

std::vector<int> parse_cpu_list(const std::string& text) {
  std::vector<int> numbers;
  for (const std::string& part : split(text, ',')) {
    int first = 0, last = 0;
    const int num_read = std::sscanf(part.c_str(), "%d-%d", &first, &last);
    if (num_read < 1 || first < 0) return {};
    if (num_read == 1) last = first;
    for (int number = first; number <= last; ++number) numbers.push_back(number);
  }
  return numbers;
}

std::string cpu_list(std::vector<int> cpus) {
  std::sort(cpus.begin(), cpus.end());
  std::string text;
  for (size_t i = 0; i < cpus.size();) {
    size_t end = i + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    if (!text.empty()) text += ',';
    text +=
        end - i == 1 ? fmt::format("{}", cpus[i]) : fmt::format("{}-{}", cpus[i], cpus[end - 1]);
    i = end;
  }
  return text;
}

std::vector<Core> share_of_cores(const std::vector<Core>& cores, int share, int num_shares) {
  const size_t n = cores.size();
  if (n == 0) return {};
  const auto i = static_cast<size_t>(share), count = static_cast<size_t>(num_shares);
  // More shares than cores: several shares use the same core.
  if (n < count) return {cores[i % n]};
  return {cores.begin() + static_cast<std::ptrdiff_t>(i * n / count),
          cores.begin() + static_cast<std::ptrdiff_t>((i + 1) * n / count)};
}

std::vector<int> cpus_of(const std::vector<Core>& cores) {
  std::vector<int> cpus;
  for (const Core& core : cores) cpus.insert(cpus.end(), core.cpus.begin(), core.cpus.end());
  std::sort(cpus.begin(), cpus.end());
  return cpus;
}

bool bind_this_thread(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  return sched_setaffinity(0, sizeof set, &set) == 0;
}

}  // namespace lockstep
