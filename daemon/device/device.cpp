#include "daemon/device/device.h"

#include <cstdlib>
#include <filesystem>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "daemon/device/busy_gpus.h"
#include "daemon/device/device_choice.h"
#include "dist/agree.h"
#include "dist/nccl/load_nccl.h"

namespace lockstep::daemon {
namespace {

constexpr const char* kWorkspace = "CUBLAS_WORKSPACE_CONFIG";  // cuBLAS, "Results reproducibility"

/// True on Linux with a driver, or in WSL (/dev/dxg).
bool has_nvidia_driver() {
  return std::filesystem::exists("/dev/nvidiactl") || std::filesystem::exists("/dev/dxg");
}

/// Returns the GPUs for device: auto. GPUs that do not work count as absent, with a warning.
std::vector<std::string> usable_gpus() {
  if (!has_nvidia_driver()) return {};
  try {
    return dist::nccl_device_ids();
  } catch (const Error& fault) {
    log::warning("start", fmt::format("there is an NVIDIA driver, but {}", fault.what()));
    return {};
  }
}

/// Gathers the visible GPUs of all ranks and chooses one for each. Collective.
GpuChoice agree_on_gpus(const std::vector<std::string>& own_ids, const dist::ProcessInfo& process,
                        dist::Communicator& control) {
  const VisibleGpus own{.node = process.node,
                        .ids = own_ids,
                        .may_share = !own_ids.empty() && ranks_may_share(dist::nccl_version())};
  std::vector<VisibleGpus> all_N;
  for (const std::string& text : dist::gather_texts(control, text_of(own)))
    all_N.push_back(read_visible_gpus(static_cast<int>(all_N.size()), text));
  return choose_gpus(all_N);
}

std::string environment(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

/// Warns of other processes on this rank's GPU. Call it before any rank uses its GPU: a container
/// numbers its own processes differently. Skipped in a restart, which is urgent and whose first
/// start has warned.
void name_who_is_there(int index, dist::Communicator& control) {
  const std::string restarts = environment("LOCKSTEP_RESTART_COUNT");
  const bool is_first = restarts.empty() || restarts == "0";
  // on_all_ranks: nvidia-smi may fail on one rank alone.
  const std::vector<GpuProcess> there = dist::on_all_ranks(
      control, [&] { return is_first ? gpu_processes() : std::vector<GpuProcess>(); });
  std::set<int64_t> own_pids;
  for (const std::string& pid : dist::gather_texts(control, std::to_string(::getpid())))
    own_pids.insert(std::stoll(pid));
  warn_of_busy_gpu(dist::nccl_device_ids().at(static_cast<size_t>(index)), there, own_pids);
}

/// Sets up the memory of this rank's GPU and returns its facts.
metrics::GpuFacts take_gpu(const dist::GpuMemoryOptions& options, int index) {
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

std::string text_of(int rank, const metrics::GpuFacts& gpu) {
  constexpr double kGib = 1 << 30;
  return fmt::format("rank {}: GPU {} ({}), at most {:.1f} of {:.1f} GiB", rank, gpu.name, gpu.id,
                     static_cast<double>(gpu.memory_limit_bytes) / kGib,
                     static_cast<double>(gpu.memory_bytes) / kGib);
}

}  // namespace

at::Device agree_on_device(const std::string& wanted, const dist::ProcessInfo& process,
                           dist::Communicator& control) {
  if (wanted == "cpu") return at::kCPU;
  const bool must = wanted == "cuda";
  // "cuda": a fault on one rank is an error on all. "auto": such a rank just has no GPUs.
  const std::vector<std::string> ids =
      must ? dist::on_all_ranks(control, [] { return dist::nccl_device_ids(); }) : usable_gpus();
  const GpuChoice choice = agree_on_gpus(ids, process, control);
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
    log::info("start", fmt::format("memory of GPUs is taken {}; {}",
                                   wanted.at_start ? "at the start" : "as it is needed",
                                   fmt::join(texts, "; ")));
  return gpu;
}

void fit_to(at::Device device, const dist::ProcessInfo& process, bool prunes,
            dist::SyncOptions* sync) {
  dist::fit_bucket_bytes({.on_gpu = device.is_cuda(),
                          .num_hosts = process.num_nodes,
                          .num_ranks = process.world_size,
                          .prunes = prunes},
                         sync);
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
  const char* set = std::getenv(kWorkspace);
  const std::string_view workspace = set == nullptr ? "" : set;
  // cuBLAS documents these two values as deterministic.
  if (run.deterministic == "true" && workspace != ":4096:8" && workspace != ":16:8")
    throw Error(ExitCode::kConfig, "start",
                fmt::format("run.deterministic: true on a GPU needs {} to be :4096:8 or :16:8, and "
                            "the environment says '{}': correct it or leave it unset",
                            kWorkspace, workspace));
}

}  // namespace lockstep::daemon
