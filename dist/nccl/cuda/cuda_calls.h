#pragma once

#include <memory>

#include "dist/nccl/gpu_calls.h"

namespace lockstep::dist::nccl {

/// Returns NCCL's version number: 22809 for 2.28.9.
int library_version();

/// Returns the number of GPUs that this process can use; 0 without a GPU or driver.
int num_cuda_devices();

/// Writes the name of a GPU, "GPU-" and its UUID, and a 0: at most kDeviceIdBytes
/// (dist/nccl/nccl_module.h). Writes only the 0 if CUDA does not report it.
void cuda_device_id(int device_index, char* id);

/// Returns the calls of CUDA and NCCL for one GPU of this process.
std::shared_ptr<GpuCalls> make_cuda_calls(int device_index);

}  // namespace lockstep::dist::nccl
