#include "dist/nccl/nccl_module.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <optional>

#include <c10/cuda/CUDAGuard.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include "base/error.h"
#include "dist/agree.h"
#include "dist/nccl/nccl_communicator.h"

namespace lockstep::dist::nccl {
namespace {

int nccl_version() {
  int version = 0;
  check_nccl(ncclGetVersion(&version), "ncclGetVersion");
  return version;
}

int num_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  static_cast<void>(cudaGetLastError());  // "no device" and "no driver" are answers here
  return 0;
}

void device_id(int device_index, char* id) {
  id[0] = '\0';
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, device_index) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return;
  }
  std::string text = "GPU-";
  for (const char byte : properties.uuid.bytes)
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  text.copy(id, kDeviceIdBytes - 1);
  id[std::min<size_t>(text.size(), kDeviceIdBytes - 1)] = '\0';
}

/// Runs one rank's part of a collective start; its fault becomes every rank's.
void agreed(Communicator& control, const std::function<void()>& part) {
  std::optional<Error> fault;
  try {
    part();
  } catch (const Error& error) {
    fault = error;
  } catch (const std::exception& error) {
    fault = Error(ExitCode::kUnavailable, "dist.nccl", error.what());
  }
  throw_if_any(control, fault);
}

/// LibTorch's CUDA kernels register themselves when their library is opened; programs do not link
/// it.
void open_torch_cuda() {
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE) == nullptr)
    throw Error(
        ExitCode::kUnavailable, "dist.nccl",
        fmt::format(
            "cannot open LibTorch's CUDA library: {} (a GPU needs the full wheel of torch, which "
            "tools/setup fetches where it finds a GPU)",
            dlerror()));
}

void require_device(int device_index) {
  int count = 0;
  check_cuda(cudaGetDeviceCount(&count), "no NVIDIA GPU can be used: cudaGetDeviceCount");
  if (device_index < 0 || device_index >= count)
    throw Error(
        ExitCode::kUnavailable, "dist.nccl",
        fmt::format("GPU {} was asked for, but this process sees {} (CUDA_VISIBLE_DEVICES?)",
                    device_index, count));
}

std::string make_unique_id() {
  ncclUniqueId id{};
  check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
  return {id.internal, sizeof(id.internal)};
}

OwnedComm start_nccl(Communicator& control, const std::string& id_bytes, double timeout_s) {
  ncclUniqueId id{};
  check(id_bytes.size() == sizeof(id.internal), "NCCL's unique id was cut short");
  std::memcpy(id.internal, id_bytes.data(), sizeof(id.internal));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  const ncclResult_t begun =
      ncclCommInitRankConfig(&comm, control.world_size(), id, control.rank(), &config);
  OwnedComm owned(comm, timeout_s);
  owned.require(begun, "ncclCommInitRankConfig");
  return owned;
}

Communicator* make_communicator(Communicator& control, int device_index, double timeout_s) {
  agreed(control, [&] {
    require_device(device_index);
    open_torch_cuda();
  });
  const c10::cuda::CUDAGuard on_device(static_cast<at::DeviceIndex>(device_index));
  std::string id;
  agreed(control, [&] {
    if (control.rank() == 0) id = make_unique_id();
  });
  id = broadcast_text(control, id);
  std::unique_ptr<Communicator> made;
  agreed(control, [&] {
    made = std::make_unique<NcclCommunicator>(start_nccl(control, id, timeout_s), device_index);
  });
  return made.release();
}

}  // namespace
}  // namespace lockstep::dist::nccl

extern "C" __attribute__((visibility("default")))
const lockstep::dist::nccl::ModuleTable lockstep_nccl_module{
    LOCKSTEP_BUILD_ID, lockstep::dist::nccl::nccl_version, lockstep::dist::nccl::num_devices,
    lockstep::dist::nccl::device_id, lockstep::dist::nccl::make_communicator};
