#include "metrics/table/capped_gauges.h"

#include <fmt/format.h>

#include "base/log.h"
#include "metrics/table/series_table.h"

// Labels from a model or from data can be arbitrarily many. Each one would be a time series in
// Prometheus, so their number is limited.
namespace lockstep::metrics {

CappedGauges::CappedGauges(prometheus::Registry& registry, const char* name, size_t max_series,
                           const char* instead)
    : name_(name),
      instead_(instead),
      max_series_(max_series),
      family_(prometheus::BuildGauge().Name(name).Help(series_info(name).help).Register(registry)) {
}

void CappedGauges::set(const prometheus::Labels& labels, double value) {
  auto known = gauges_.find(labels);
  if (known == gauges_.end()) {
    if (gauges_.size() >= max_series_) {
      // Each further label set is only counted, so the log has one line.
      if (num_left_out_++ == 0)
        log::warning("metrics", fmt::format("{} has the {} series that a page may have of it: "
                                            "further ones are left out; {} has them all",
                                            name_, max_series_, instead_));
      return;
    }
    known = gauges_.emplace(labels, &family_.Add(labels)).first;
  }
  known->second->Set(value);
}

}  // namespace lockstep::metrics
