#include "base/process/cores.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>
#include <tuple>

#include <sched.h>

#include <fmt/format.h>

#include "base/process/cgroup.h"
#include "base/process/proc.h"

namespace lockstep {
namespace {

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
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
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
