#pragma once

#include <map>
#include <string>
#include <vector>

#include <prometheus/metric_family.h>

#include "metrics/native_histogram.h"
#include "metrics/page_format.h"

/// Content of a page of metrics, and its text in each format.
namespace lockstep::metrics {

/// Series of a page.
struct PageContent {
  std::vector<prometheus::MetricFamily> families;
  /// Exemplars and native buckets, for which the families' type has no place, by the name of a
  /// family with one series.
  std::map<std::string, HistogramSample> histograms = {};
};

/// Formats families in the given order. In the text formats numbers have the fewest digits that
/// distinguish them. kText is equal to prometheus::TextSerializer, but faster, and with newlines in
/// help texts escaped. kProtobuf is a sequence of messages of page.proto, each after its length.
std::string page_in(PageFormat format, const PageContent& content);

/// Page of one rank.
struct RankPage {
  std::vector<prometheus::ClientMetric::Label> labels;  ///< added to each of its series
  std::string content;
};

/// Merges several pages of one format into one. Each family occurs once, with help and type of the
/// first page that has it. Series keep the order of the pages. A label that a series already has is
/// not added again. Omits what it cannot read.
std::string merged_page(PageFormat format, const std::vector<RankPage>& pages);

}  // namespace lockstep::metrics
