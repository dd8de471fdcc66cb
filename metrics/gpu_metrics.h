#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace prometheus {
class Registry;
struct MetricFamily;
}  // namespace prometheus

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

/// What LibTorch's allocator tells of it.
struct GpuUse {
  int64_t allocated_bytes = 0;  ///< in tensors now
  int64_t reserved_bytes = 0;   ///< taken from the GPU now, in use or kept for later
  int64_t peak_bytes = 0;       ///< the most that tensors took since the process started
  int64_t num_ooms = 0;         ///< allocations that failed
};
std::vector<prometheus::MetricFamily> gpu_use_families(const GpuUse& use);

/// Once, for the GPU of this rank. A rank that computes on a CPU exports no such series.
void add_gpu_series(prometheus::Registry& registry, const GpuFacts& gpu);

}  // namespace lockstep::metrics
