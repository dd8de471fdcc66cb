#include "launch/restarts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace lockstep::launch {
namespace host_pool_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::vector<Host> kThree{{"n1", 2}, {"n2", 2}, {"n3", 2}};

TEST(HostPool, ALostHostIsLeftOutAtOnceAndTheRunShrinks) {
  HostPool pool(kThree, 6, 2);
  EXPECT_THAT(pool.note({"n2"}, {}), ElementsAre("n2"));
  EXPECT_EQ(host_list(pool.hosts()), "n1:2,n3:2");
  EXPECT_EQ(pool.num_ranks(), 4);
}

TEST(HostPool, MpirunShowsAHostWithoutItsDomain) {
  HostPool pool({{"n1.cluster", 1}, {"n2.cluster", 1}}, 2, 1);
  EXPECT_THAT(pool.note({"n2"}, {}), ElementsAre("n2.cluster"));
}

TEST(HostPool, ASpareHostKeepsTheNumberOfRanks) {
  HostPool pool(kThree, 4, 4);
  EXPECT_THAT(pool.note({"n1"}, {}), ElementsAre("n1"));
  EXPECT_EQ(pool.num_ranks(), 4);
}

TEST(HostPool, AHostWhereARankWasKilledIsLeftOutTheSecondTimeInARow) {
  HostPool pool(kThree, 6, 2);
  EXPECT_THAT(pool.note({}, {"n3"}), IsEmpty());
  EXPECT_THAT(pool.note({}, {"n1"}), IsEmpty());  // another host: n3 is not meant
  EXPECT_THAT(pool.note({}, {"n3"}), IsEmpty());
  EXPECT_THAT(pool.note({}, {"n3"}), ElementsAre("n3"));
}

TEST(HostPool, NoHostIsLeftOutBelowTheLeastNumberOfRanks) {
  HostPool pool(kThree, 6, 5);
  EXPECT_THAT(pool.note({"n2"}, {}), IsEmpty());
  EXPECT_TRUE(pool.is_short());
  EXPECT_EQ(pool.num_ranks(), 6);
  EXPECT_THAT(pool.note({}, {}), IsEmpty());
  EXPECT_FALSE(pool.is_short());
}

TEST(HostPool, WithoutHostsNothingIsLeftOut) {
  HostPool pool({}, 2, 1);
  EXPECT_THAT(pool.note({"n1"}, {"n1"}), IsEmpty());
  EXPECT_EQ(pool.num_ranks(), 2);
}

TEST(HostPool, NumbersThatDoNotFitAreRefused) {
  EXPECT_THROW(HostPool(kThree, 7, 1), Error);
  EXPECT_THROW(HostPool(kThree, 2, 3), Error);
  EXPECT_THROW(HostPool({}, 2, 3), Error);
}

}  // namespace host_pool_test
}  // namespace lockstep::launch
