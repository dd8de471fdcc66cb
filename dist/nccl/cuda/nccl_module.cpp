// The module's only exported symbol: a table of functions. Everything else stays inside the
// library.
#include "dist/nccl/nccl_module.h"

#include "dist/nccl/cuda/cuda_calls.h"
#include "dist/nccl/gpu_memory.h"
#include "dist/nccl/start_communicator.h"

namespace lockstep::dist::nccl {
namespace {

Communicator* make_communicator(Communicator& control, int device_index, double timeout_s) {
  return start_communicator(control, make_cuda_calls(device_index), {.timeout_s = timeout_s})
      .release();
}

GpuMemoryFacts set_up_memory_of(int device_index, const GpuMemoryOptions& options) {
  return set_up_memory(*make_memory_calls(device_index), options);
}

GpuMemoryUse memory_use_of(int device_index) { return make_memory_calls(device_index)->use(); }

}  // namespace
}  // namespace lockstep::dist::nccl

extern "C" __attribute__((visibility("default")))
const lockstep::dist::nccl::ModuleTable lockstep_nccl_module{
    LOCKSTEP_BUILD_ID,
    lockstep::dist::nccl::library_version,
    lockstep::dist::nccl::num_cuda_devices,
    lockstep::dist::nccl::cuda_device_id,
    lockstep::dist::nccl::set_up_memory_of,
    lockstep::dist::nccl::memory_use_of,
    lockstep::dist::nccl::make_communicator};
