#pragma once

#include <string>
#include <vector>

namespace prometheus {
struct MetricFamily;
}

namespace lockstep::metrics {

/// Formats families in Prometheus' text format 0.0.4, in the given order. Numbers have the fewest
/// digits that distinguish them. Equal to prometheus::TextSerializer, but faster, and with newlines
/// in help texts escaped.
std::string page_text(const std::vector<prometheus::MetricFamily>& families);

}  // namespace lockstep::metrics
