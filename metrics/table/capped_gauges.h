#pragma once

#include <cstddef>
#include <map>
#include <string>

#include <prometheus/gauge.h>
#include <prometheus/labels.h>
#include <prometheus/registry.h>

namespace lockstep::metrics {

/// The gauges of one name whose labels follow from what a run holds (layers, classes, KPIs), so
/// that nobody knows how many there will be: the first `max_series` are shown, the others are left
/// out, which the log says once. Threads: one sets.
class CappedGauges {
 public:
  /// `name`: of the table of series. `instead`: where the values that are left out can be seen.
  CappedGauges(prometheus::Registry& registry, const char* name, size_t max_series,
               const char* instead);

  void set(const prometheus::Labels& labels, double value);
  size_t num_left_out() const { return num_left_out_; }

 private:
  const std::string name_, instead_;
  const size_t max_series_;
  prometheus::Family<prometheus::Gauge>& family_;
  std::map<prometheus::Labels, prometheus::Gauge*> gauges_;
  size_t num_left_out_ = 0;  ///< calls
};

}  // namespace lockstep::metrics
