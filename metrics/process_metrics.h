#pragma once

#include <vector>

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

namespace lockstep::metrics {

/// The process_* series of every Prometheus client library, read from /proc/self at each scrape. If
/// a file cannot be read, its series are absent.
class ProcessMetrics final : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override;
};

}  // namespace lockstep::metrics
