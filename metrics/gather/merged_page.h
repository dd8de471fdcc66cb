#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::metrics {

/// Answer of one rank.
struct RankPage {
  std::string labels;  ///< added to each of its series: rank="1",node="n1"
  std::string text;    ///< Prometheus' text format 0.0.4
};

/// Merges several pages into one. Each family occurs once, with help and type of the first page
/// that has it. Series keep the order of the pages. A label that a series already has is not added
/// again.
std::string merged_page(const std::vector<RankPage>& pages);

}  // namespace lockstep::metrics
