#include "checkpoint/shard_plan.h"

#include <gtest/gtest.h>

namespace lockstep::checkpoint {
namespace {

TEST(ShardPlan, TheLargestGoesFirstToTheLeastLoaded) {
  const std::vector<PlannedPiece> pieces = {{"a", 1}, {"b", 10}, {"c", 6}, {"d", 5}};
  // b -> 0; c -> 1; d -> 1 (6 < 10) makes 11; a -> 0
  EXPECT_EQ(plan_shards(pieces, 2), (std::vector<int>{0, 0, 1, 1}));
}

TEST(ShardPlan, TiesGoToTheLowerNameAndRank) {
  EXPECT_EQ(plan_shards({{"z", 4}, {"a", 4}, {"m", 4}}, 3), (std::vector<int>{2, 0, 1}));
}

TEST(ShardPlan, HoldsForNothingAndForMoreRanksThanPieces) {
  EXPECT_TRUE(plan_shards({}, 4).empty());
  EXPECT_EQ(plan_shards({{"a", 4}}, 4), (std::vector<int>{0}));
  EXPECT_EQ(plan_shards({{"a", 4}, {"b", 0}}, 1), (std::vector<int>{0, 0}));
}

}  // namespace
}  // namespace lockstep::checkpoint
