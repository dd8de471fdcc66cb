#pragma once

#include "dist/communicator.h"
#include "dist/gpu_memory.h"

/// Interface between a program and the NCCL module, a library that is opened only if a GPU is used.
/// So programs link neither CUDA nor NCCL. Both sides must come from one build; `build_id` proves
/// it.
namespace lockstep::dist::nccl {

constexpr int kDeviceIdBytes = 64;

struct ModuleTable {
  const char* build_id;  ///< must be the first field of every version

  /// Returns NCCL's version number: 22809 for 2.28.9.
  int (*nccl_version)();

  /// Returns the number of GPUs that this process can use; 0 without a GPU or driver.
  int (*num_devices)();

  /// Writes the name of a GPU, "GPU-" and its UUID, and a 0: at most kDeviceIdBytes. Writes only
  /// the 0 if CUDA does not report it.
  void (*device_id)(int device_index, char* id);

  /// Implements set_up_gpu_memory().
  GpuMemoryFacts (*set_up_memory)(int device_index, const GpuMemoryOptions& options);

  /// Implements gpu_memory_use().
  GpuMemoryUse (*memory_use)(int device_index);

  /// Implements make_nccl_communicator(); the caller owns the result.
  Communicator* (*make_communicator)(Communicator& control, int device_index, double timeout_s);
};

constexpr const char* kModuleSymbol = "lockstep_nccl_module";  // extern "C" const ModuleTable
constexpr const char* kModuleFile = "liblockstep_nccl.so";

}  // namespace lockstep::dist::nccl
