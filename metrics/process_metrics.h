#pragma once

#include <vector>

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

namespace lockstep::metrics {

/// The process_* series that every Prometheus client library exports, read from /proc/self at each
/// scrape. A file that cannot be read leaves its series out.
class ProcessMetrics final : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override;
};

}  // namespace lockstep::metrics
