#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "dist/communicator.h"
#include "dist/gpu_memory.h"

namespace lockstep::dist {

/// Search paths of the NCCL module, best first: only $LOCKSTEP_NCCL_MODULE if it is set; otherwise
/// the program's folder, then ../lib/lockstep relative to it.
std::vector<std::filesystem::path> nccl_module_paths();

/// Identifiers of the GPUs that this process can use, by CUDA's index: "GPU-" and the UUID, the
/// same in every process that sees the GPU. Empty if CUDA does not report it. Throws like
/// num_nccl_devices().
std::vector<std::string> nccl_device_ids();

/// Returns the number of GPUs that this process can use; 0 without a GPU or driver. Throws
/// Error(kUnavailable) if the module is missing, cannot be opened or is of another build.
int num_nccl_devices();

/// Returns NCCL's version, such as "2.28.9". Throws like num_nccl_devices().
std::string nccl_version();

/// Limits and reserves the memory of a GPU of this process, before the first tensor there. Also
/// opens LibTorch's CUDA library. Throws Error(kConfig) if the process already holds memory there,
/// kUnavailable if not enough is free, and like num_nccl_devices().
GpuMemoryFacts set_up_gpu_memory(int device_index, const GpuMemoryOptions& options);

/// Returns the allocator's present statistics for a GPU on which set_up_gpu_memory() was called;
/// any thread. Throws like num_nccl_devices().
GpuMemoryUse gpu_memory_use(int device_index);

/// Creates a communicator over the GPUs of the ranks of `control`, this rank on GPU `device_index`.
/// No wait for a peer, at the start or later, exceeds timeout_s. Collective over `control`, which
/// carries NCCL's unique id and is not kept. Also opens LibTorch's CUDA library. Throws
/// Error(kUnavailable) on every rank if any rank lacks the module, the GPU or a required library.
/// The message names the rank and the remedy.
std::unique_ptr<Communicator> make_nccl_communicator(Communicator& control, int device_index,
                                                     double timeout_s);

}  // namespace lockstep::dist
