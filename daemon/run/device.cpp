#include "daemon/run/device.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <malloc.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"
#include "base/process.h"
#include "base/text.h"
#include "base/yaml/config_reader.h"
#include "daemon/config/overrides.h"
#include "dist/nccl/load_nccl.h"

// Choice of a rank's device, other processes on its GPU, memory and threads.
namespace lockstep::daemon {
namespace {

/// Format of text_of(): '+' or '-' and the host name, then one GPU id per line.
constexpr char kShares = '+', kAlone = '-';

constexpr const char* kCure =
    "give each rank its own GPU (Slurm: --gpus-per-task=1), start fewer ranks on the host, or set "
    "run.device to cpu";

std::string fault_of_few(const VisibleGpus& rank, size_t num_ranks) {
  if (rank.ids.empty())
    return fmt::format("rank {} on {} has no usable GPU: {}", rank.rank, rank.node, kCure);
  return fmt::format("{} ranks on {} see the same {} GPU(s), so rank {} has none: {}", num_ranks,
                     rank.node, rank.ids.size(), rank.rank, kCure);
}

/// Returns the host name if GPUs have no ids of their own, otherwise an empty text. Ids are unique
/// across hosts, while containers on one host may have different host names.
std::string place_of(const VisibleGpus& rank) {
  const bool are_named = !rank.ids.empty() && std::ranges::count(rank.ids, "") == 0;
  return are_named ? std::string() : rank.node;
}

}  // namespace

bool has_nvidia_driver() { return files::exists("/dev/nvidiactl") || files::exists("/dev/dxg"); }

bool ranks_may_share(const std::string& nccl_version) {
  const char* text = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  if (text == nullptr || std::string_view(text) != "1") return false;
  int major = 0, minor = 0;
  char dot = 0;
  // An unreadable version leaves 0.0, which does not support sharing.
  std::istringstream(nccl_version) >> major >> dot >> minor;
  // NCCL supports several ranks on one GPU from 2.30 on.
  return std::pair(major, minor) >= std::pair(2, 30);
}

std::string text_of(const VisibleGpus& gpus) {
  std::string text = (gpus.may_share ? kShares : kAlone) + gpus.node + "\n";
  for (const std::string& id : gpus.ids) text += id + "\n";
  return text;
}

VisibleGpus read_visible_gpus(int rank, const std::string& text) {
  const std::vector<std::string> lines = split(text);
  return {.rank = rank,
          .node = lines.at(0).substr(1),
          .ids = {lines.begin() + 1, lines.end()},
          .may_share = text.at(0) == kShares};
}

VisibleGpus visible_gpus(const std::string& node, const std::vector<std::string>& ids) {
  return {
      .node = node, .ids = ids, .may_share = !ids.empty() && ranks_may_share(dist::nccl_version())};
}

std::vector<VisibleGpus> gather_visible_gpus(dist::Communicator& control, const VisibleGpus& own) {
  std::vector<VisibleGpus> all_N;
  for (const std::string& text : dist::gather_texts(control, text_of(own)))
    all_N.push_back(read_visible_gpus(static_cast<int>(all_N.size()), text));
  return all_N;
}

GpuChoice choose_gpus(const std::vector<VisibleGpus>& all_N) {
  // Ranks with equal place and GPU list see the same GPUs; they take successive indexes.
  using Sight = std::pair<std::string, std::vector<std::string>>;
  std::map<Sight, int> num_ranks, next_index;
  for (const VisibleGpus& rank : all_N) ++num_ranks[{place_of(rank), rank.ids}];
  std::map<std::pair<std::string, std::string>, const VisibleGpus*> owners;  // by place and GPU
  const bool may_share = std::all_of(all_N.begin(), all_N.end(),
                                     [](const VisibleGpus& rank) { return rank.may_share; });
  GpuChoice choice;
  for (const VisibleGpus& rank : all_N) {
    const Sight sight{place_of(rank), rank.ids};
    int index = next_index[sight]++;
    if (may_share && !rank.ids.empty()) index %= static_cast<int>(rank.ids.size());
    if (static_cast<size_t>(index) >= rank.ids.size())
      return {{}, fault_of_few(rank, static_cast<size_t>(num_ranks[sight]))};
    const std::string& id = rank.ids[static_cast<size_t>(index)];
    // Detects ranks with different lists that would still take the same GPU.
    const auto [owner, is_new] = owners.try_emplace({place_of(rank), id}, &rank);
    if (!is_new && !id.empty() && !may_share)
      return {{},
              fmt::format("ranks {} and {} on {} would both compute on GPU {}: {}",
                          owner->second->rank, rank.rank, rank.node, id, kCure)};
    choice.index_N.push_back(index);
  }
  return choice;
}

std::string name_of_gpu(const std::string& visible_devices, int index) {
  const std::vector<std::string> names = split(visible_devices, ',');
  const auto place = static_cast<size_t>(index);
  return place < names.size() ? names[place] : std::to_string(index);
}

std::string text_of(const GpuProcess& process) {
  return fmt::format("process {} ({}, {} MiB)", process.pid, printable(process.name),
                     printable(process.memory_mib));
}

std::vector<GpuProcess> gpu_processes() {
  // The command has its own time limit: a broken driver must not block the start.
  const ShellResult said = run_in_shell(
      "timeout 5 nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name,used_memory "
      "--format=csv,noheader,nounits 2>/dev/null");
  if (said.exit_code != 0) return {};
  std::vector<GpuProcess> all;
  // Lines of the form "GPU-1f..., 812, python3, 12000".
  for (const std::string& each : split(said.text)) {
    const std::string_view line = each;
    const size_t first = line.find(','), last = line.rfind(',');
    const size_t second = first == line.npos ? first : line.find(',', first + 1);
    // The process name may contain commas: the pid follows the first one, the memory the last.
    if (second == line.npos || second >= last) continue;
    const auto pid = parse_integer(trimmed(line.substr(first + 1, second - first - 1)));
    // Other lines are headings or messages of nvidia-smi.
    if (!pid) continue;
    const std::string_view command = trimmed(line.substr(second + 1, last - second - 1));
    all.push_back({.gpu_id = std::string(trimmed(line.substr(0, first))),
                   .pid = *pid,
                   .name = std::filesystem::path(command).filename().string(),
                   .memory_mib = std::string(trimmed(line.substr(last + 1)))});
  }
  return all;
}

bool is_same_gpu(const std::string& a, const std::string& b) {
  const auto bare = [](std::string id) {
    std::erase(id, '-');
    return id;
  };
  return bare(a) == bare(b);
}

constexpr const char* kWorkspace = "CUBLAS_WORKSPACE_CONFIG";  // cuBLAS, "Results reproducibility"

/// Returns the GPUs for device: auto. GPUs that do not work count as absent, with a warning.
static std::vector<std::string> usable_gpus() {
  if (!has_nvidia_driver()) return {};
  try {
    return dist::nccl_device_ids();
  } catch (const Error& fault) {
    log::warning("start", fmt::format("the NVIDIA driver is installed, but {}", fault.what()));
    return {};
  }
}

static std::string environment(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

/// Warns of other processes on this rank's GPU. Call it before any rank uses its GPU: a container
/// numbers its own processes differently. Skipped in a restart, which is urgent and whose first
/// start has warned.
static void name_who_is_there(int index, dist::Communicator& control) {
  const std::string restarts = environment("LOCKSTEP_RESTART_COUNT");
  const bool is_first = restarts.empty() || restarts == "0";
  // on_all_ranks: nvidia-smi may fail on one rank alone.
  const std::vector<GpuProcess> there = dist::on_all_ranks(
      control, [&] { return is_first ? gpu_processes() : std::vector<GpuProcess>(); });
  std::set<int64_t> own_pids;
  for (const std::string& pid : dist::gather_texts(control, std::to_string(::getpid())))
    own_pids.insert(std::stoll(pid));
  const std::string id = dist::nccl_device_ids().at(static_cast<size_t>(index));
  for (const GpuProcess& one : there)
    if (is_same_gpu(one.gpu_id, id) && !own_pids.contains(one.pid))
      log::warning(
          "start",
          fmt::format("{} is busy with {}: both programs run more slowly, and memory may be too "
                      "small; end it, or give this rank another GPU (CUDA_VISIBLE_DEVICES)",
                      one.gpu_id, text_of(one)));
}

/// Sets up the memory of this rank's GPU and returns its facts.
static metrics::GpuFacts take_gpu(const dist::GpuMemoryOptions& options, int index) {
  const dist::GpuMemoryFacts memory = dist::set_up_gpu_memory(index, options);
  const std::string visible = environment("CUDA_VISIBLE_DEVICES");
  return {.index = index,
          .id = dist::nccl_device_ids().at(static_cast<size_t>(index)),
          .visible_devices = visible,
          .name = name_of_gpu(visible, index),
          .memory_policy = options.at_start ? "all" : "default",
          .memory_bytes = memory.total,
          .memory_limit_bytes = memory.limit};
}

static std::string text_of(int rank, const metrics::GpuFacts& gpu) {
  constexpr double kGib = 1 << 30;
  return fmt::format("rank {}: GPU {} ({}), at most {:.1f} of {:.1f} GiB", rank, gpu.name, gpu.id,
                     static_cast<double>(gpu.memory_limit_bytes) / kGib,
                     static_cast<double>(gpu.memory_bytes) / kGib);
}

at::Device agree_on_device(const std::string& wanted, const dist::ProcessInfo& process,
                           dist::Communicator& control) {
  if (wanted == "cpu") return at::kCPU;
  const bool must = wanted == "cuda";
  // "cuda": a fault on one rank is an error on all. "auto": such a rank just has no GPUs.
  const std::vector<std::string> ids =
      must ? dist::on_all_ranks(control, [] { return dist::nccl_device_ids(); }) : usable_gpus();
  const GpuChoice choice =
      choose_gpus(gather_visible_gpus(control, visible_gpus(process.node, ids)));
  if (choice.fault.empty())
    return {at::kCUDA, static_cast<at::DeviceIndex>(choice.index_N.at(control.rank()))};
  if (must)
    throw Error(ExitCode::kConfig, "start", "run.device is cuda, but " + choice.fault).everywhere();
  if (!ids.empty())
    log::warning("start", fmt::format("this rank sees {} GPU(s), but all ranks use CPUs, as {}",
                                      ids.size(), choice.fault));
  return at::kCPU;
}

std::optional<metrics::GpuFacts> set_up_gpu(const GpuOptions& options, at::Device device,
                                            dist::Communicator& control) {
  if (!device.is_cuda()) {
    if (options.is_given() && control.rank() == 0)
      log::info("start", "all ranks compute on CPUs: the section gpu has no effect");
    return std::nullopt;
  }
  const dist::GpuMemoryOptions wanted = options.memory();
  name_who_is_there(device.index(), control);
  const metrics::GpuFacts gpu =
      dist::on_all_ranks(control, [&] { return take_gpu(wanted, device.index()); });
  const std::vector<std::string> texts = dist::gather_texts(control, text_of(control.rank(), gpu));
  if (control.rank() == 0)
    log::info("start",
              fmt::format("memory of GPUs is allocated {}; {}",
                          wanted.at_start ? "at the start" : "as needed", fmt::join(texts, "; ")));
  return gpu;
}

metrics::GpuUse gpu_use(int index) {
  const dist::GpuMemoryUse use = dist::gpu_memory_use(index);
  return {.allocated_bytes = use.allocated,
          .reserved_bytes = use.reserved,
          .peak_bytes = use.peak,
          .num_ooms = use.num_ooms};
}

void prepare_deterministic_gpu(const RunOptions& run) {
  if (run.deterministic == "false" || run.device == "cpu") return;
  // Only cuBLAS reads this variable, at its first use; 8 buffers of 4096 KiB (cuBLAS documentation,
  // "Results reproducibility"). A value of the user stays.
  setenv(kWorkspace, ":4096:8", /*overwrite=*/0);
}

void require_device_keeps_promises(const RunOptions& run, at::Device device) {
  if (!device.is_cuda()) return;
  if (run.is_elastic())
    throw Error(ExitCode::kConfig, "start",
                "run.deterministic: elastic promises the same bits on any number of ranks, and on "
                "GPUs sums over ranks are in NCCL's order, which depends on it: set run.device to "
                "cpu, or run.deterministic to true");
  const std::string workspace = environment(kWorkspace);
  // cuBLAS documents these two values as deterministic.
  if (run.deterministic == "true" && workspace != ":4096:8" && workspace != ":16:8")
    throw Error(ExitCode::kConfig, "start",
                fmt::format("run.deterministic: true on a GPU needs {} to be :4096:8 or :16:8, and "
                            "the environment sets '{}': correct it or unset it",
                            kWorkspace, workspace));
}

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
  // With one more thread than the quota can run, the kernel stops all of them for the rest of each
  // period, even inside a barrier.
  const int num_ranks = std::max(1, process.local_world_size);
  const int64_t fed =
      quota ? std::max<int64_t>(1, static_cast<int64_t>(*quota / num_ranks)) : num_cores;
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

at::Device set_up_alone(const RunOptions& run, const GpuOptions& gpu) {
  dist::SelfCommunicator control;
  const dist::ProcessInfo process;
  set_up_compute(run, process, control);
  prepare_deterministic_gpu(run);
  const at::Device device = agree_on_device(run.device, process, control);
  require_device_keeps_promises(run, device);
  (void)set_up_gpu(gpu, device, control);
  return device;
}

}  // namespace lockstep::daemon
