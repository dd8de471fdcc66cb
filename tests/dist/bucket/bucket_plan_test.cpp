#include "dist/reducer/buckets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace lockstep::dist {
namespace bucket_plan_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Plan = std::vector<std::vector<int64_t>>;

TEST(BucketPlan, NoParametersMakeNoBuckets) { EXPECT_THAT(plan_buffers({}, 100), IsEmpty()); }

TEST(BucketPlan, FillsFromTheLastParameterToTheFirst) {
  const std::vector<PlannedParam> params{{40, 0}, {40, 0}, {40, 0}, {40, 0}, {40, 0}};
  EXPECT_EQ(plan_buffers(params, 100), (Plan{{4, 3}, {2, 1}, {0}}));
}

TEST(BucketPlan, ABucketMayBeExactlyFull) {
  EXPECT_EQ(plan_buffers({{50, 0}, {50, 0}, {51, 0}}, 100), (Plan{{2}, {1, 0}}));
}

TEST(BucketPlan, ALargeParameterStandsAlone) {
  EXPECT_EQ(plan_buffers({{10, 0}, {500, 0}, {10, 0}}, 100), (Plan{{2}, {1}, {0}}));
}

TEST(BucketPlan, GroupsDoNotMixAndBucketsStandInOrderOfCompletion) {
  // Weights (group 0) and biases (group 1) in turn: the biases' bucket stays open to the end.
  const std::vector<PlannedParam> params{{80, 0}, {4, 1}, {80, 0}, {4, 1}, {80, 0}, {4, 1}};
  EXPECT_EQ(plan_buffers(params, 100), (Plan{{4}, {2}, {5, 3, 1}, {0}}));
}

TEST(BucketPlan, EveryParameterIsInOneBucketOfItsGroup) {
  std::vector<PlannedParam> params;
  for (int64_t i = 0; i < 500; ++i) params.push_back({i * 37 % 101 * 4, i * i % 3});
  std::vector<int> times(params.size());
  for (const std::vector<int64_t>& bucket : plan_buffers(params, 600)) {
    int64_t num_bytes = 0;
    for (const int64_t i : bucket) {
      ++times[i];
      num_bytes += params[i].num_bytes;
      EXPECT_EQ(params[i].group, params[bucket.front()].group);
    }
    EXPECT_LE(num_bytes, 600);
    EXPECT_TRUE(std::is_sorted(bucket.rbegin(), bucket.rend()));
  }
  EXPECT_THAT(times, ::testing::Each(1));
}

TEST(BucketPlan, NeedsASize) { EXPECT_THROW(plan_buffers({{1, 0}}, 0), Error); }

}  // namespace bucket_plan_test
}  // namespace lockstep::dist
