#include "metrics/gpu_metrics.h"

#include "metrics/series.h"

namespace lockstep::metrics {

void add_gpu_series(prometheus::Registry& registry, const GpuFacts& gpu) {
  info(registry, "lockstep_gpu_info",
       {{"index", std::to_string(gpu.index)},
        {"name", gpu.name},
        {"id", gpu.id},
        {"visible_devices", gpu.visible_devices},
        {"memory_policy", gpu.memory_policy}});
  gauge(registry, "lockstep_gpu_memory_bytes").Set(static_cast<double>(gpu.memory_bytes));
  gauge(registry, "lockstep_gpu_memory_limit_bytes")
      .Set(static_cast<double>(gpu.memory_limit_bytes));
}

}  // namespace lockstep::metrics
