#pragma once

#include <cstddef>
#include <string_view>

/// Formats of a page of metrics, and the choice among them. Needs no header of prometheus-cpp.
namespace lockstep::metrics {

enum class PageFormat {
  kText,         ///< Prometheus' text format 0.0.4, which every reader knows
  kOpenMetrics,  ///< OpenMetrics 1.0.0: the same series, with exemplars
  kProtobuf,     ///< Prometheus' protobuf format: also with native histograms
};
inline constexpr size_t kNumPageFormats = 3;

/// Returns the format that a client prefers by its Accept header (RFC 9110, 12.5.1): the one with
/// the highest q, of equal ones the first. Text if it names none of the three.
PageFormat wanted_format(std::string_view accept);

/// Returns the Content-Type of a page, which is also an Accept header that asks for it.
const char* content_type(PageFormat format);

}  // namespace lockstep::metrics
