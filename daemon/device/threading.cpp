#include "daemon/device/threading.h"

#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "base/log.h"
#include "base/process/cgroup.h"
#include "base/process/cores.h"
#include "dist/agree.h"

namespace lockstep::daemon {
namespace {

/// Position of this rank among the ranks of its host that share its cores.
struct Sharers {
  int place = 0;
  int count = 1;
};

Sharers find_sharers(const std::vector<Core>& cores, const dist::ProcessInfo& process,
                     dist::Communicator& control) {
  const std::string mine = fmt::format("{} {}", process.node, cpu_list(cpus_of(cores)));
  const std::vector<std::string> all = dist::gather_texts(control, mine);
  const auto self = all.begin() + control.rank();
  // Count equal texts of lower ranks and of all ranks.
  return {.place = static_cast<int>(std::count(all.begin(), self, mine)),
          .count = static_cast<int>(std::count(all.begin(), all.end(), mine))};
}

/// Decides whether to bind threads to cores. auto: yes with several NUMA nodes and several ranks,
/// if there is a core for each rank.
bool binds(const RunOptions& options, const std::vector<Core>& cores, const Sharers& sharers) {
  if (options.bind_cores != "auto") return options.bind_cores == "true";
  const bool has_numa = !cores.empty() && cores.front().numa_node != cores.back().numa_node;
  return has_numa && sharers.count > 1 && static_cast<size_t>(sharers.count) <= cores.size();
}

/// Returns the threads that a container's CPU quota can run all the time. With one more thread, the
/// kernel stops all of them for the rest of each period, even inside a barrier.
int64_t threads_in_quota(double cores, const dist::ProcessInfo& process) {
  return static_cast<int64_t>(cores / std::max(1, process.local_world_size));
}

struct Threads {
  int64_t count = 1;
  std::string bound;  ///< what limited the number, for the log
};

Threads choose_threads(const RunOptions& options, const std::vector<Core>& share,
                       const dist::ProcessInfo& process) {
  if (options.threads > 0) return {options.threads, ""};
  // One thread: shares of cores differ between world sizes, results must not.
  if (options.is_elastic()) return {};
  const auto num_cores = std::max<int64_t>(1, static_cast<int64_t>(share.size()));
  const std::optional<double> quota = cgroup_limits().cores;
  const int64_t fed = quota ? std::max<int64_t>(1, threads_in_quota(*quota, process)) : num_cores;
  if (fed >= num_cores) return {num_cores, ""};
  return {fed, fmt::format(", by the container's CPU quota of {:g}", *quota)};
}

}  // namespace

void keep_freed_memory() {
  setenv("THP_MEM_ALLOC_ENABLE", "1", /*overwrite=*/0);  // LibTorch's: large tensors on huge pages
  // Settings of the user take precedence.
  for (const char* name :
       {"MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"})
    if (std::getenv(name) != nullptr) return;
  constexpr int kKeepBytes = 1 << 30;
  // No mmap for large blocks, and up to 1 GiB stays at the heap's end: freed memory is reused.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, kKeepBytes);
}

void set_up_compute(const RunOptions& options, const dist::ProcessInfo& process,
                    dist::Communicator& control) {
  const std::vector<Core> cores = allowed_cores();
  const Sharers sharers = find_sharers(cores, process, control);
  const std::vector<Core> share = share_of_cores(cores, sharers.place, sharers.count);
  const bool is_bound = binds(options, cores, sharers) && bind_this_thread(cpus_of(share));
  const Threads threads = choose_threads(options, share, process);
  at::set_num_threads(static_cast<int>(threads.count));
  at::globalContext().setFlushDenormal(true);  // threads created later inherit it
  at::globalContext().setDeterministicAlgorithms(options.deterministic != "false", false);
  if (process.rank == 0)
    log::info("start",
              fmt::format("{} compute thread(s) a rank{}; {} of {} core(s), which {} rank(s) share",
                          threads.count, threads.bound,
                          is_bound ? fmt::format("bound to cpus {}", cpu_list(cpus_of(share)))
                                   : std::string("not bound to any"),
                          cores.size(), sharers.count));
}

}  // namespace lockstep::daemon
