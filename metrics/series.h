#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/labels.h>
#include <prometheus/metric_family.h>
#include <prometheus/registry.h>

#include "metrics/series_table.h"

/// Helpers that build series. Outside this module only tests and benchmarks
/// include them.
namespace lockstep::metrics {

/// Returns the family of a name. `help`: null for a series of the table, which has one.
inline prometheus::Family<prometheus::Gauge>& gauge_family(prometheus::Registry& registry,
                                                           const char* name,
                                                           const char* help = nullptr) {
  return prometheus::BuildGauge()
      .Name(name)
      .Help(help != nullptr ? help : series_info(name).help)
      .Register(registry);
}
inline prometheus::Family<prometheus::Counter>& counter_family(prometheus::Registry& registry,
                                                               const char* name,
                                                               const char* help = nullptr) {
  return prometheus::BuildCounter()
      .Name(name)
      .Help(help != nullptr ? help : series_info(name).help)
      .Register(registry);
}
inline prometheus::Family<prometheus::Histogram>& histogram_family(prometheus::Registry& registry,
                                                                   const char* name) {
  return prometheus::BuildHistogram().Name(name).Help(series_info(name).help).Register(registry);
}
inline prometheus::Gauge& gauge(prometheus::Registry& registry, const char* name) {
  return gauge_family(registry, name).Add({});
}
inline prometheus::Counter& counter(prometheus::Registry& registry, const char* name,
                                    const char* help = nullptr) {
  return counter_family(registry, name, help).Add({});
}
/// Adds a gauge that is always 1 and carries its information in its labels.
inline void info(prometheus::Registry& registry, const char* name,
                 const prometheus::Labels& labels) {
  gauge_family(registry, name).Add(labels).Set(1);
}

/// Gauge that is not exported until its first value, because 0 would be wrong. One thread sets it.
class OptionalGauge {
 public:
  OptionalGauge(prometheus::Registry& registry, const char* name, const char* help = nullptr)
      : family_(gauge_family(registry, name, help)) {}

  void set(double value) {
    if (gauge_ == nullptr) gauge_ = &family_.Add({});
    gauge_->Set(value);
  }

 private:
  prometheus::Family<prometheus::Gauge>& family_;
  prometheus::Gauge* gauge_ = nullptr;
};

/// Gauges of one name whose labels depend on the run (layers, classes, KPIs), so their number is
/// not known in advance. The first `max_series` are exported. The others are omitted, which is
/// logged once. Threads: one sets.
class CappedGauges {
 public:
  /// `name`: from the table of series. `instead`: where the omitted values can be found.
  CappedGauges(prometheus::Registry& registry, const char* name, size_t max_series,
               const char* instead);

  void set(const prometheus::Labels& labels, double value);

 private:
  const std::string name_, instead_;
  const size_t max_series_;
  prometheus::Family<prometheus::Gauge>& family_;
  std::map<prometheus::Labels, prometheus::Gauge*> gauges_;
  bool has_warned_ = false;
};

/// Returns a family of the table with a single value and no labels.
prometheus::MetricFamily family_of(const char* name, double value);

/// Returns the process_* series of every Prometheus client library, read from /proc/self at each
/// call. If a file cannot be read, its series are absent.
std::vector<prometheus::MetricFamily> process_families();

}  // namespace lockstep::metrics
