#include "metrics/page_formats.h"

#include <gtest/gtest.h>

namespace lockstep::metrics {
namespace merged_page_test {

TEST(MergedPage, HoldsEachFamilyOnceWithTheSeriesOfAll) {
  const std::string first =
      "# HELP a_total Of a.\n# TYPE a_total counter\na_total 1\n"
      "# HELP b Of b.\n# TYPE b gauge\nb{x=\"1\"} 2\n";
  const std::string second =
      "# HELP a_total Of a.\n# TYPE a_total counter\na_total 3\n"
      "# TYPE c histogram\nc_bucket{le=\"+Inf\"} 1\nc_sum 0.5\nc_count 1\n";
  EXPECT_EQ(merged_page(PageFormat::kText, {{{{"rank", "0"}}, first}, {{{"rank", "1"}}, second}}),
            "# HELP a_total Of a.\n# TYPE a_total counter\n"
            "a_total{rank=\"0\"} 1\na_total{rank=\"1\"} 3\n"
            "# HELP b Of b.\n# TYPE b gauge\nb{rank=\"0\",x=\"1\"} 2\n"
            "# TYPE c histogram\nc_bucket{rank=\"1\",le=\"+Inf\"} 1\nc_sum{rank=\"1\"} 0.5\n"
            "c_count{rank=\"1\"} 1\n");
}

TEST(MergedPage, PutsNoLabelOnASeriesThatHasIt) {
  const std::string page =
      "# TYPE a gauge\na{rank=\"7\",node=\"n7\"} 1\na{myrank=\"7\"} 1\n"
      "a{text=\"say \\\"hi\\\",rank=\\\"7\"} 1\na{} 1\n";
  EXPECT_EQ(merged_page(PageFormat::kText, {{{{"rank", "0"}, {"node", "n"}}, page}}),
            "# TYPE a gauge\na{rank=\"7\",node=\"n7\"} 1\na{rank=\"0\",node=\"n\",myrank=\"7\"} 1\n"
            "a{rank=\"0\",node=\"n\",text=\"say \\\"hi\\\",rank=\\\"7\"} 1\n"
            "a{rank=\"0\",node=\"n\"} 1\n");
}

TEST(MergedPage, LeavesOutWhatIsNoSeries) {
  EXPECT_EQ(merged_page(PageFormat::kText,
                        {{{{"rank", "0"}}, "# a remark\n\nbroken\n# TYPE a gauge\na 1"}}),
            "# TYPE a gauge\na{rank=\"0\"} 1\n");
  EXPECT_EQ(merged_page(PageFormat::kText, {}), "");
}

TEST(MergedPage, OpenMetricsKeepsExemplarsAndEndsOnce) {
  const std::string first =
      "# TYPE a counter\na_total 1\n"
      "# TYPE d histogram\nd_bucket{le=\"1.0\"} 2 # {step=\"7\"} 0.5 12.000\n# EOF\n";
  EXPECT_EQ(
      merged_page(PageFormat::kOpenMetrics,
                  {{{{"rank", "0"}}, first}, {{{"rank", "1"}}, "# TYPE a counter\na_total 3\n"}}),
      "# TYPE a counter\na_total{rank=\"0\"} 1\na_total{rank=\"1\"} 3\n"
      "# TYPE d histogram\n"
      "d_bucket{rank=\"0\",le=\"1.0\"} 2 # {step=\"7\"} 0.5 12.000\n# EOF\n");
}

TEST(MergedPage, MessagesOfAFamilyAreJoined) {
  const auto page = [](double value, const char* rank) {
    prometheus::MetricFamily family{"a", "Of a.", prometheus::MetricType::Gauge, {}};
    prometheus::ClientMetric& metric = family.metric.emplace_back();
    metric.gauge.value = value;
    if (rank != nullptr) metric.label = {{"rank", rank}};
    return PageContent{{family}};
  };
  const std::string first = page_in(PageFormat::kProtobuf, page(1, nullptr));
  const std::string second = page_in(PageFormat::kProtobuf, page(2, nullptr));
  PageContent both = page(1, "0");
  both.families[0].metric.push_back(page(2, "1").families[0].metric[0]);
  const std::string wanted = page_in(PageFormat::kProtobuf, both);
  EXPECT_EQ(
      merged_page(PageFormat::kProtobuf, {{{{"rank", "0"}}, first}, {{{"rank", "1"}}, second}}),
      wanted);
  // A label that a series has stays; what cannot be read is left out.
  EXPECT_EQ(merged_page(PageFormat::kProtobuf, {{{{"rank", "7"}}, wanted}}), wanted);
  EXPECT_EQ(
      merged_page(PageFormat::kProtobuf,
                  {{{{"rank", "0"}}, first}, {{{"rank", "1"}}, second}, {{}, "not a message"}}),
      wanted);
  EXPECT_EQ(merged_page(PageFormat::kProtobuf, {}), "");
}

}  // namespace merged_page_test
}  // namespace lockstep::metrics
