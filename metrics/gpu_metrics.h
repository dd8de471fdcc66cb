#pragma once

#include <cstdint>
#include <string>

namespace prometheus {
class Registry;
}

namespace lockstep::metrics {

/// The GPU on which a rank computes.
struct GpuFacts {
  int index = 0;                ///< CUDA's, among those that the process sees
  std::string id;               ///< "GPU-..."; empty where CUDA does not tell
  std::string visible_devices;  ///< CUDA_VISIBLE_DEVICES; empty if unset
  std::string name;             ///< what visible_devices calls it; the index if that is unset
  std::string memory_policy;    ///< default: memory is taken as it is needed; all: at the start
  int64_t memory_bytes = 0;
  int64_t memory_limit_bytes = 0;  ///< that tensors may take
};

/// Once, for the GPU of this rank. A rank that computes on a CPU exports no such series.
void add_gpu_series(prometheus::Registry& registry, const GpuFacts& gpu);

}  // namespace lockstep::metrics
