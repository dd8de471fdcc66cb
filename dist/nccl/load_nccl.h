#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "dist/communicator.h"
#include "dist/gpu_memory.h"

namespace lockstep::dist {

/// Paths at which the NCCL module is looked for, best first: $LOCKSTEP_NCCL_MODULE alone if it is
/// set; else beside the program, then in ../lib/lockstep from there.
std::vector<std::filesystem::path> nccl_module_paths();

/// Names of the GPUs that this process can use, by CUDA's index, the same in every process that
/// sees the GPU: "GPU-" and its UUID, empty where CUDA does not tell. Throws as num_nccl_devices().
std::vector<std::string> nccl_device_ids();

/// GPUs that this process can use; 0 if there is none or no driver.
/// Throws Error(kUnavailable) if the module is missing, cannot be opened or is of another build.
int num_nccl_devices();

/// "2.28.9". Throws as num_nccl_devices().
std::string nccl_version();

/// Divides the memory of a GPU of this process, before the first tensor there. Opens LibTorch's
/// CUDA library too. Throws Error(kConfig) if memory was taken there before, kUnavailable if the
/// share is not free, and as num_nccl_devices().
GpuMemoryFacts set_up_gpu_memory(int device_index, const GpuMemoryOptions& options);

/// What the allocator of a GPU of this process, whose memory was divided, tells now; from any
/// thread. Throws as num_nccl_devices().
GpuMemoryUse gpu_memory_use(int device_index);

/// A communicator over the GPUs of the ranks of `control`, this rank on GPU `device_index`.
/// No wait for a peer, while starting or later, is longer than timeout_s.
/// Collective over `control`, which carries NCCL's unique id and is not kept. Opens LibTorch's CUDA
/// library too. Throws, on every rank alike, Error(kUnavailable) if any rank lacks the module, the
/// GPU or a library that it needs; the text names rank and cure.
std::unique_ptr<Communicator> make_nccl_communicator(Communicator& control, int device_index,
                                                     double timeout_s);

}  // namespace lockstep::dist
