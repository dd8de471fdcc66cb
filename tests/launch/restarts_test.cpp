#include "launch/supervise/restarts.h"

#include <csignal>

#include <gtest/gtest.h>

#include "base/error.h"

namespace lockstep::launch {
namespace restarts_test {

TEST(Restarts, OnlyLostAndHangingRanksAreWorthAnotherTry) {
  for (const int code : {1, 255, 69, 79, 128 + SIGKILL, 128 + SIGSEGV, 128 + SIGBUS, 128 + SIGABRT})
    EXPECT_TRUE(is_worth_another_try(code)) << code;
  for (const int code : {0, 64, 65, 66, 70, 73, 74, 75, 76, 78, 80, 127, 132, 128 + SIGTERM,
                         128 + SIGINT, 128 + SIGUSR1})
    EXPECT_FALSE(is_worth_another_try(code)) << code;
}

TEST(Restarts, OnlyWhatAStopDoesIsAnEndByIt) {
  for (const int code : {1, 255, 69, 128 + SIGKILL, 128 + SIGTERM, 128 + SIGINT})
    EXPECT_TRUE(is_end_by_a_stop(code)) << code;
  for (const int code : {64, 65, 66, 70, 73, 74, 76, 78, 79, 80, 132, 128 + SIGSEGV, 128 + SIGABRT})
    EXPECT_FALSE(is_end_by_a_stop(code)) << code;
}

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
