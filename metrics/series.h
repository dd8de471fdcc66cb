#pragma once

#include <string>

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/labels.h>
#include <prometheus/registry.h>

#include "metrics/table/series_table.h"

/// Helpers that build series. Only sources of this module include them.
namespace lockstep::metrics {

inline prometheus::Family<prometheus::Gauge>& gauge_family(prometheus::Registry& registry,
                                                           const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}
inline prometheus::Family<prometheus::Counter>& counter_family(prometheus::Registry& registry,
                                                               const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}

inline prometheus::Counter& counter(prometheus::Registry& registry, const char* name,
                                    const char* help) {
  return counter_family(registry, name, help).Add({});
}
// Series of the table, with the table's help.
inline prometheus::Family<prometheus::Gauge>& gauge_family(prometheus::Registry& registry,
                                                           const char* name) {
  return gauge_family(registry, name, series_info(name).help);
}
inline prometheus::Family<prometheus::Counter>& counter_family(prometheus::Registry& registry,
                                                               const char* name) {
  return counter_family(registry, name, series_info(name).help);
}
inline prometheus::Family<prometheus::Histogram>& histogram_family(prometheus::Registry& registry,
                                                                   const char* name) {
  return prometheus::BuildHistogram().Name(name).Help(series_info(name).help).Register(registry);
}
inline prometheus::Gauge& gauge(prometheus::Registry& registry, const char* name) {
  return gauge_family(registry, name).Add({});
}
inline prometheus::Counter& counter(prometheus::Registry& registry, const char* name) {
  return counter_family(registry, name).Add({});
}
/// Adds a gauge that is always 1 and carries its information in its labels.
inline void info(prometheus::Registry& registry, const char* name,
                 const prometheus::Labels& labels) {
  gauge_family(registry, name).Add(labels).Set(1);
}

/// Gauge that is not exported until its first value, because 0 would be wrong. One thread sets it.
class OptionalGauge {
 public:
  OptionalGauge(prometheus::Registry& registry, const char* name, const char* help)
      : family_(gauge_family(registry, name, help)) {}
  OptionalGauge(prometheus::Registry& registry, const char* name)
      : OptionalGauge(registry, name, series_info(name).help) {}

  void set(double value) {
    if (gauge_ == nullptr) gauge_ = &family_.Add({});
    gauge_->Set(value);
  }

 private:
  prometheus::Family<prometheus::Gauge>& family_;
  prometheus::Gauge* gauge_ = nullptr;
};

}  // namespace lockstep::metrics
