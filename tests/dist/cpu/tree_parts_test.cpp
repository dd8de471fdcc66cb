#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dist/cpu/chunked_all_reduce.h"

namespace lockstep::dist::cpu {
namespace tree_parts_test {

using ::testing::ElementsAre;

TEST(TreeParts, OneRankAHostIsOnePartEach) {
  const TreeParts parts = TreeParts::of_ranks(3);
  EXPECT_THAT(parts.first_ranks, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(parts.owners, ElementsAre(0, 1, 2));
}

TEST(TreeParts, AWholeNodeOfTheTreeIsOnePart) {
  const TreeParts parts = TreeParts::of_hosts({0, 0, 1, 1});
  EXPECT_THAT(parts.first_ranks, ElementsAre(0, 2, 4));
  EXPECT_THAT(parts.owners, ElementsAre(0, 1));
}

/// Six ranks, three a host: the tree is ((0 1) (2 3)) (4 5), so 2 and 3 lie apart.
TEST(TreeParts, HostsThatCutNodesHoldSeveral) {
  const TreeParts parts = TreeParts::of_hosts({0, 0, 0, 1, 1, 1});
  EXPECT_THAT(parts.first_ranks, ElementsAre(0, 2, 3, 4, 6));
  EXPECT_THAT(parts.owners, ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(parts.parts_of(0), ElementsAre(0, 1));
  EXPECT_THAT(parts.parts_of(1), ElementsAre(2, 3));
}

TEST(TreeParts, RanksDealtInTurnAreSingleParts) {
  EXPECT_THAT(TreeParts::of_hosts({0, 1, 0, 1}).owners, ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(TreeParts::of_hosts({0, 1, 0, 1}).first_ranks, ElementsAre(0, 1, 2, 3, 4));
}

TEST(TreeParts, HostsThatHoldOnePartEachAreLikeRanks) {
  const auto are_like_ranks = [](const std::vector<int>& hosts_N) {
    return TreeParts::of_hosts(hosts_N).are_like_ranks();
  };
  EXPECT_TRUE(are_like_ranks({0, 1, 2, 3, 4}));
  EXPECT_TRUE(are_like_ranks({0, 0, 1, 1, 2, 2}));
  EXPECT_TRUE(are_like_ranks({0, 0, 0, 0, 1, 1})) << "the last host has fewer";
  EXPECT_FALSE(are_like_ranks({0, 0, 0, 1, 1, 1})) << "parts of two hosts lie between each other";
  EXPECT_FALSE(are_like_ranks({0, 1, 0, 1})) << "hosts hold several parts";
  EXPECT_FALSE(are_like_ranks({0, 0, 1, 2})) << "((0 0) (1 2)), and three ranks are ((0 1) 2)";
}

TEST(TreeParts, OneHostHoldsTheTree) {
  EXPECT_THAT(TreeParts::of_hosts({0, 0, 0}).first_ranks, ElementsAre(0, 3));
}

}  // namespace tree_parts_test
}  // namespace lockstep::dist::cpu
