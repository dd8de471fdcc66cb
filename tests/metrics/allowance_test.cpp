#include "metrics/http/allowance.h"

#include <gtest/gtest.h>

namespace lockstep::metrics {
namespace allowance_test {

using Clock = Allowance::Clock;
using std::chrono::milliseconds;

TEST(Allowance, ABurstIsFreeThenOneComesAfterTheOther) {
  Allowance allowance(/*per_s=*/50, /*burst=*/3);
  const Clock::time_point start = Clock::now() + std::chrono::hours(1);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(allowance.wait(start).count(), 0);
    allowance.take(start);
  }
  EXPECT_EQ(allowance.wait(start), milliseconds(20));
  EXPECT_EQ(allowance.wait(start + milliseconds(20)).count(), 0);
  allowance.take(start + milliseconds(20));
  EXPECT_EQ(allowance.wait(start + milliseconds(20)), milliseconds(20));
}

TEST(Allowance, ManyAtOnceStillComeOneAfterTheOther) {
  Allowance allowance(/*per_s=*/50, /*burst=*/3);
  const Clock::time_point start = Clock::now() + std::chrono::hours(1);
  for (int i = 0; i < 1000; ++i) allowance.take(start);
  EXPECT_EQ(allowance.wait(start), milliseconds(19'960));  // 998 at 50 a second
}

TEST(Allowance, QuietGivesTheBurstBackAndNoMore) {
  Allowance allowance(/*per_s=*/50, /*burst=*/3);
  const Clock::time_point start = Clock::now() + std::chrono::hours(1);
  for (int i = 0; i < 3; ++i) allowance.take(start);
  const Clock::time_point later = start + std::chrono::hours(1);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(allowance.wait(later).count(), 0);
    allowance.take(later);
  }
  EXPECT_GT(allowance.wait(later).count(), 0);
}

}  // namespace allowance_test
}  // namespace lockstep::metrics
