#pragma once

#include <cstddef>
#include <map>
#include <string>

#include <prometheus/gauge.h>
#include <prometheus/labels.h>
#include <prometheus/registry.h>

namespace lockstep::metrics {

/// Gauges of one name whose labels depend on the run (layers, classes, KPIs), so their number is
/// not known in advance. The first `max_series` are exported. The others are omitted, which is
/// logged once. Threads: one sets.
class CappedGauges {
 public:
  /// `name`: from the table of series. `instead`: where the omitted values can be found.
  CappedGauges(prometheus::Registry& registry, const char* name, size_t max_series,
               const char* instead);

  void set(const prometheus::Labels& labels, double value);
  size_t num_left_out() const { return num_left_out_; }

 private:
  const std::string name_, instead_;
  const size_t max_series_;
  prometheus::Family<prometheus::Gauge>& family_;
  std::map<prometheus::Labels, prometheus::Gauge*> gauges_;
  size_t num_left_out_ = 0;  ///< number of calls
};

}  // namespace lockstep::metrics
