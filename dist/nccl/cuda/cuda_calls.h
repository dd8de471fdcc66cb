#pragma once

#include <memory>

#include "dist/nccl/gpu_calls.h"

namespace lockstep::dist::nccl {

/// NCCL's version as it numbers itself: 22809 for 2.28.9.
int library_version();

/// GPUs that this process can use; 0 if there is no GPU or no driver.
int num_cuda_devices();

/// Writes the name of a GPU, "GPU-" and its UUID, and a 0: at most kDeviceIdBytes
/// (dist/nccl/nccl_module.h); only the 0 if CUDA does not tell.
void cuda_device_id(int device_index, char* id);

/// The table of CUDA and NCCL for one GPU of this process.
std::shared_ptr<GpuCalls> make_cuda_calls(int device_index);

}  // namespace lockstep::dist::nccl
