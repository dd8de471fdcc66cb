#include "metrics/rank_pages.h"

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
  EXPECT_EQ(merged_page({{"rank=\"0\"", first}, {"rank=\"1\"", second}}),
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
  EXPECT_EQ(merged_page({{R"(rank="0",node="n")", page}}),
            "# TYPE a gauge\na{rank=\"7\",node=\"n7\"} 1\na{rank=\"0\",node=\"n\",myrank=\"7\"} 1\n"
            "a{rank=\"0\",node=\"n\",text=\"say \\\"hi\\\",rank=\\\"7\"} 1\n"
            "a{rank=\"0\",node=\"n\"} 1\n");
}

TEST(MergedPage, LeavesOutWhatIsNoSeries) {
  EXPECT_EQ(merged_page({{"rank=\"0\"", "# a remark\n\nbroken\n# TYPE a gauge\na 1"}}),
            "# TYPE a gauge\na{rank=\"0\"} 1\n");
  EXPECT_EQ(merged_page({}), "");
}

}  // namespace merged_page_test
}  // namespace lockstep::metrics
