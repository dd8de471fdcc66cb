#include "metrics/gpu_metrics.h"

#include <prometheus/metric_family.h>

#include "metrics/series.h"

// Facts are set once as normal gauges. The allocator's numbers are read at each scrape, so they are
// families that are built each time.
namespace lockstep::metrics {
namespace {

/// Returns a family with a single value and no labels.
prometheus::MetricFamily family_of(const char* name, prometheus::MetricType type, int64_t value) {
  prometheus::MetricFamily family{name, series_info(name).help, type, {}};
  prometheus::ClientMetric& metric = family.metric.emplace_back();
  (type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value) =
      static_cast<double>(value);
  return family;
}

}  // namespace

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

std::vector<prometheus::MetricFamily> gpu_use_families(const GpuUse& use) {
  using prometheus::MetricType;
  return {family_of("lockstep_gpu_memory_allocated_bytes", MetricType::Gauge, use.allocated_bytes),
          family_of("lockstep_gpu_memory_reserved_bytes", MetricType::Gauge, use.reserved_bytes),
          family_of("lockstep_gpu_memory_peak_bytes", MetricType::Gauge, use.peak_bytes),
          family_of("lockstep_gpu_ooms_total", MetricType::Counter, use.num_ooms)};
}

}  // namespace lockstep::metrics
