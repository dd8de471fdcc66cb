#include "train/step/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::train {
namespace skipped_updates_test {

using ::testing::HasSubstr;

TEST(SkippedUpdates, TheFirstIsToldThenOneAMinute) {
  double now_s = 100;
  SkippedUpdates skipped([&now_s] { return now_s; });
  EXPECT_THAT(
      *skipped.add(7, "the loss of rank 1 is not finite"),
      HasSubstr("step 7: the update was skipped, because the loss of rank 1 is not finite"));
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(skipped.add(8 + i, "the mean gradient"));
  now_s += 61;
  EXPECT_THAT(*skipped.add(20, "the mean gradient"), HasSubstr("skipped so far: 5"));
}

}  // namespace skipped_updates_test
}  // namespace lockstep::train
