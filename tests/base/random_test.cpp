#include "base/random.h"

#include <set>

#include <gtest/gtest.h>

namespace lockstep {
namespace random_test {

TEST(CounterRandom, IsAPureFunctionOfKeyAndIndex) {
  EXPECT_EQ(CounterRandom({1, 2}).bits(7), CounterRandom({1, 2}).bits(7));
  EXPECT_NE(CounterRandom({1, 2}).bits(7), CounterRandom({2, 1}).bits(7));
  EXPECT_NE(CounterRandom({1, 2}).bits(7), CounterRandom({1, 2, 0}).bits(7));
}

TEST(CounterRandom, LooksUniform) {
  const CounterRandom random{17};
  constexpr int kDraws = 100'000;
  double sum = 0, sum_of_squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double value = random.uniform(i);
    ASSERT_GE(value, 0);
    ASSERT_LT(value, 1);
    sum += value;
    sum_of_squares += value * value;
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 0.005);
  EXPECT_NEAR(sum_of_squares / kDraws, 1.0 / 3, 0.005);
}

TEST(CounterRandom, BelowCoversItsRange) {
  const CounterRandom random{17};
  std::set<uint64_t> seen;
  for (int i = 0; i < 200; ++i) seen.insert(random.below(i, 6));
  EXPECT_EQ(seen, (std::set<uint64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(random.below(3, 1), 0U);
}

}  // namespace random_test
}  // namespace lockstep
