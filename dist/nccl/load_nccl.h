#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "dist/communicator.h"
#include "dist/nccl/gpu_memory.h"

/// Interface between a program and the NCCL module, a library that is opened only if a GPU is used.
/// So programs link neither CUDA nor NCCL. Both sides must come from one build; `build_id` proves
/// it.
namespace lockstep::dist::nccl {

constexpr int kDeviceIdBytes = 64;

struct ModuleTable {
  const char* build_id;   ///< must be the first field of every version
  int (*nccl_version)();  ///< NCCL's version number: 22809 for 2.28.9
  int (*num_devices)();   ///< GPUs that this process can use; 0 without a GPU or driver
  /// Writes the name of a GPU, "GPU-" and its UUID, and a 0: at most kDeviceIdBytes. Writes only
  /// the 0 if CUDA does not report it.
  void (*device_id)(int device_index, char* id);
  // Implement the functions for programs below; the caller owns the communicator.
  GpuMemoryFacts (*set_up_memory)(int device_index, const GpuMemoryOptions& options);
  GpuMemoryUse (*memory_use)(int device_index);
  Communicator* (*make_communicator)(Communicator& control, int device_index, double timeout_s);
};

constexpr const char* kModuleSymbol = "lockstep_nccl_module";  // extern "C" const ModuleTable
constexpr const char* kModuleFile = "liblockstep_nccl.so";

}  // namespace lockstep::dist::nccl

namespace lockstep::dist {

// Functions for programs. Those that need the module open it.

/// Search paths of the NCCL module, best first: only $LOCKSTEP_NCCL_MODULE if it is set; otherwise
/// the program's folder, then ../lib/lockstep relative to it.
std::vector<std::filesystem::path> nccl_module_paths();

/// Identifiers of the GPUs that this process can use, by CUDA's index: "GPU-" and the UUID, the
/// same in every process that sees the GPU. Empty if CUDA does not report it. Throws
/// Error(kUnavailable) if the module is missing, cannot be opened or is of another build.
std::vector<std::string> nccl_device_ids();

/// Returns NCCL's version, such as "2.28.9". Throws like nccl_device_ids().
std::string nccl_version();

/// Limits and reserves the memory of a GPU of this process, before the first tensor there. Also
/// opens LibTorch's CUDA library. Throws Error(kConfig) if the process already holds memory there,
/// kUnavailable if not enough is free, and like nccl_device_ids().
GpuMemoryFacts set_up_gpu_memory(int device_index, const GpuMemoryOptions& options);

/// Returns the allocator's present statistics for a GPU on which set_up_gpu_memory() was called;
/// any thread. Throws like nccl_device_ids().
GpuMemoryUse gpu_memory_use(int device_index);

/// Creates a communicator over the GPUs of the ranks of `control`, this rank on GPU `device_index`.
/// No wait for a peer, at the start or later, exceeds timeout_s. Collective over `control`, which
/// carries NCCL's unique id and is not kept. Also opens LibTorch's CUDA library. Throws
/// Error(kUnavailable) on every rank if any rank lacks the module, the GPU or a required library.
/// The message names the rank and the remedy.
std::unique_ptr<Communicator> make_nccl_communicator(Communicator& control, int device_index,
                                                     double timeout_s);

}  // namespace lockstep::dist
