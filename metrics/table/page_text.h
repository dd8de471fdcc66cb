#pragma once

#include <string>
#include <vector>

namespace prometheus {
struct MetricFamily;
}

namespace lockstep::metrics {

/// Families in Prometheus' text format 0.0.4, in the order given; numbers with as few digits as
/// tell them apart. What prometheus::TextSerializer says, in less time, and with line breaks of
/// help escaped.
std::string page_text(const std::vector<prometheus::MetricFamily>& families);

}  // namespace lockstep::metrics
