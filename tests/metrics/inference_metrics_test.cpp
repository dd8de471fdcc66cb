#include "metrics/service_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::metrics {
namespace inference_metrics_test {

using ::testing::HasSubstr;

TEST(InferRows, N86_depths_of_the_queues_are_on_the_page) {
  int64_t feeds = 0, answers = 0, iterations = 0;
  const InferenceMetrics metrics({.feeds_waiting = [&] { return feeds; },
                                  .answers_waiting = [&] { return answers; },
                                  .num_iterations = [&] { return iterations; }});
  EXPECT_THAT(metrics.page(), HasSubstr("lockstep_infer_queue_depth{queue=\"feeds\"} 0\n"));
  feeds = 2, answers = 1, iterations = 7;
  EXPECT_THAT(metrics.page(), HasSubstr("lockstep_infer_queue_depth{queue=\"feeds\"} 2\n"));
  EXPECT_THAT(metrics.page(), HasSubstr("lockstep_infer_queue_depth{queue=\"answers\"} 1\n"));
  EXPECT_THAT(metrics.page(), HasSubstr("lockstep_infer_iterations_total 7\n"));
}

TEST(InferRows, N54_kpis_are_on_the_page) {
  const auto none = [] { return int64_t{0}; };
  const InferenceMetrics metrics(
      {.feeds_waiting = none, .answers_waiting = none, .num_iterations = none, .kpis = [] {
         return std::map<std::string, double>{{"a", 0.5}};
       }});
  EXPECT_THAT(metrics.page(), HasSubstr("lockstep_kpi{kpi=\"a\",mode=\"infer\"} 0.5\n"));
}

}  // namespace inference_metrics_test
}  // namespace lockstep::metrics
