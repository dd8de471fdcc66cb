#pragma once

#include "dist/communicator.h"
#include "dist/gpu_memory.h"

/// What passes between a program and the NCCL module: a library that is opened where a GPU is used,
/// so that programs link neither CUDA nor NCCL. Both sides come from one build; `build_id` tells if
/// they do not.
namespace lockstep::dist::nccl {

constexpr int kDeviceIdBytes = 64;

struct ModuleTable {
  const char* build_id;  ///< must be the first field of every version

  /// NCCL's version as it numbers itself: 22809 for 2.28.9.
  int (*nccl_version)();

  /// GPUs that this process can use; 0 if there is no GPU or no driver.
  int (*num_devices)();

  /// Writes the name of a GPU, "GPU-" and its UUID, and a 0: at most kDeviceIdBytes; only the 0 if
  /// CUDA does not tell.
  void (*device_id)(int device_index, char* id);

  /// See set_up_gpu_memory().
  GpuMemoryFacts (*set_up_memory)(int device_index, const GpuMemoryOptions& options);

  /// See gpu_memory_use().
  GpuMemoryUse (*memory_use)(int device_index);

  /// See make_nccl_communicator(); the caller owns the result.
  Communicator* (*make_communicator)(Communicator& control, int device_index, double timeout_s);
};

constexpr const char* kModuleSymbol = "lockstep_nccl_module";  // extern "C" const ModuleTable
constexpr const char* kModuleFile = "liblockstep_nccl.so";

}  // namespace lockstep::dist::nccl
