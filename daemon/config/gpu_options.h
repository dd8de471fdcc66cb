#pragma once

#include <optional>
#include <string>

#include "base/yaml/config_reader.h"
#include "dist/gpu_memory.h"

namespace lockstep::daemon {

/// Section `gpu` of the run file: how a process allocates the memory of its GPU.
/// CUDA_VISIBLE_DEVICES and daemon/device/device_choice.h decide which GPU that is.
struct GpuOptions {
  std::optional<bool> allow_growth;
  std::optional<double> per_process_gpu_memory_fraction;  ///< in (0, 1]; absent: all of it
  std::string memory_policy = "default";  ///< default: as needed | all: at the start

  dist::GpuMemoryOptions memory() const;
  /// True if the run file sets any key of the section.
  bool is_given() const {
    return allow_growth || per_process_gpu_memory_fraction || memory_policy != "default";
  }
};

/// Reads the section. Keys that contradict each other are faults.
GpuOptions read_gpu_options(ConfigReader in);

}  // namespace lockstep::daemon
