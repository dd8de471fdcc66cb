#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace prometheus {
class Registry;
struct MetricFamily;
}  // namespace prometheus

namespace lockstep::metrics {

/// GPU of a rank.
struct GpuFacts {
  int index = 0;                ///< CUDA's index, among the GPUs that the process sees
  std::string id;               ///< "GPU-..."; empty if CUDA does not provide it
  std::string visible_devices;  ///< CUDA_VISIBLE_DEVICES; empty if unset
  std::string name;             ///< its name in visible_devices; the index if that is unset
  std::string memory_policy;    ///< default: allocate memory when needed; all: at the start
  int64_t memory_bytes = 0;
  int64_t memory_limit_bytes = 0;  ///< limit for tensors
};

/// Numbers of LibTorch's allocator for the GPU.
struct GpuUse {
  int64_t allocated_bytes = 0;  ///< in tensors now
  int64_t reserved_bytes = 0;   ///< allocated from the GPU, in use or cached
  int64_t peak_bytes = 0;       ///< maximum in tensors since the process started
  int64_t num_ooms = 0;         ///< allocations that failed
};
std::vector<prometheus::MetricFamily> gpu_use_families(const GpuUse& use);

/// Adds the series of this rank's GPU. Call it once. A rank on a CPU exports no such series.
void add_gpu_series(prometheus::Registry& registry, const GpuFacts& gpu);

}  // namespace lockstep::metrics
