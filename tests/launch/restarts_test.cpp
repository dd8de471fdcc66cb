#include "launch/restarts.h"

#include <gtest/gtest.h>

namespace lockstep::launch {
namespace restarts_test {

TEST(Restarts, TheFirstIsAtOnceThenPausesDouble) {
  Restarts restarts(8);
  for (const double pause_s : {0., 1., 2., 4., 8., 16., 30., 30.})
    EXPECT_EQ(restarts.next_pause_s(false), pause_s);
  EXPECT_EQ(restarts.next_pause_s(false), std::nullopt);
  EXPECT_EQ(restarts.count(), 8);
}

TEST(Restarts, ANewSaveBeginsTheRowAnew) {
  Restarts restarts(2);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(restarts.next_pause_s(true), 0.);
  EXPECT_EQ(restarts.next_pause_s(false), 1.);
  EXPECT_EQ(restarts.next_pause_s(false), std::nullopt);
  EXPECT_EQ(restarts.count(), 21);
}

TEST(Restarts, NoneMeansNone) {
  Restarts restarts(0);
  EXPECT_EQ(restarts.next_pause_s(false), std::nullopt);
  EXPECT_EQ(restarts.next_pause_s(true), std::nullopt);
}

}  // namespace restarts_test
}  // namespace lockstep::launch
