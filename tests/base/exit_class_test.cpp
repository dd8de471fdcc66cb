#include "base/exit_class.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace lockstep {
namespace exit_class_test {

static_assert(std::is_sorted(kExitFacts.begin(), kExitFacts.end(),
                             [](const ExitFact& a, const ExitFact& b) { return a.code < b.code; }),
              "codes_for_case() prints rows in their order");

TEST(ExitClass, IsTheHostsForDisksAndFolders) {
  for (const int code : {73, 74, 76}) EXPECT_EQ(exit_class(code), ExitClass::kHost) << code;
}

TEST(ExitClass, IsTheJobsForInputCodeAndUnknownCodes) {
  for (const int code : {64, 65, 66, 70, 78, 80, 2, 127, 132, 136, 200})
    EXPECT_EQ(exit_class(code), ExitClass::kJob) << code;
}

TEST(ExitClass, IsTransientForLostHangingAndKilledRanks) {
  for (const int code : {1, 69, 79, 129, 130, 134, 135, 137, 138, 139, 140, 143, 253, 255})
    EXPECT_EQ(exit_class(code), ExitClass::kTransient) << code;
}

TEST(ExitClass, OfAnEndAsAskedIsNoFault) {
  EXPECT_EQ(exit_class(0), ExitClass::kDone);
  EXPECT_EQ(exit_class(ExitCode::kStopped), ExitClass::kStopped);
}

TEST(ExitClass, OfARowIsListedForAShell) {
  EXPECT_EQ(codes_for_case(ExitClass::kHost), "73 | 74 | 76");
  EXPECT_EQ(codes_for_case(ExitClass::kTransient),
            "1 | 69 | 79 | 129 | 130 | 134 | 135 | 137 | 138 | 139 | 140 | 143 | 253 | 255");
}

TEST(ExitClass, AfterAStopCrashesHangsAndFailedSavesAreStillFaults) {
  for (const int code : {1, 69, 129, 130, 137, 138, 143, 255})
    EXPECT_TRUE(exit_fact(code).is_usual_after_a_stop) << code;
  for (const int code : {64, 70, 73, 74, 76, 79, 80, 132, 134, 135, 139, 253, 200})
    EXPECT_FALSE(exit_fact(code).is_usual_after_a_stop) << code;
}

}  // namespace exit_class_test
}  // namespace lockstep
