#include "daemon/device.h"

#include <filesystem>

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "dist/agree.h"
#include "dist/nccl/load_nccl.h"

namespace lockstep::daemon {
namespace {

bool has_nvidia_driver() {
  return std::filesystem::exists("/dev/nvidiactl") || std::filesystem::exists("/dev/dxg");
}

/// Whether this rank can have a GPU of its own.
bool has_own_gpu(const dist::ProcessInfo& process) {
  const int num_devices = dist::num_nccl_devices();
  return process.local_rank < num_devices && process.local_world_size <= num_devices;
}

bool offers_gpu(const dist::ProcessInfo& process) {
  if (!has_nvidia_driver()) return false;
  try {
    return has_own_gpu(process);
  } catch (const Error& fault) {
    log::warning("start", fmt::format("there is an NVIDIA driver, but {}", fault.what()));
    return false;
  }
}

bool require_gpu(const dist::ProcessInfo& process) {
  if (has_own_gpu(process)) return true;
  throw Error(
      ExitCode::kConfig, "start",
      fmt::format("run.device is cuda, but {} has {} usable GPU(s) for its {} rank(s): start "
                  "fewer ranks there, or set run.device to auto or cpu",
                  process.node, dist::num_nccl_devices(), process.local_world_size));
}

}  // namespace

at::Device agree_on_device(const std::string& wanted, const dist::ProcessInfo& process,
                           dist::Communicator& control) {
  const at::Device own_gpu(at::kCUDA, static_cast<at::DeviceIndex>(process.local_rank));
  if (wanted == "cpu") return at::kCPU;
  if (wanted == "cuda") {
    (void)dist::on_all_ranks(control, [&] { return require_gpu(process); });
    return own_gpu;
  }
  const bool offers = offers_gpu(process);
  if (dist::min_of(control, offers ? 1 : 0) == 1) return own_gpu;
  if (offers) log::warning("start", "this rank has a GPU, but not every rank has: all use CPUs");
  return at::kCPU;
}

}  // namespace lockstep::daemon
