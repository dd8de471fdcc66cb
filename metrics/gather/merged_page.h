#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::metrics {

/// What one rank answered.
struct RankPage {
  std::string labels;  ///< put on each of its series: rank="1",node="n1"
  std::string text;    ///< Prometheus' text format 0.0.4
};

/// One page of several: each family once, with its help and type from the first page that has it,
/// its series in the order of the pages. A label that a series has already is not put on it again.
std::string merged_page(const std::vector<RankPage>& pages);

}  // namespace lockstep::metrics
