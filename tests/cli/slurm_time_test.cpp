#include "cli/launching.h"

#include <gtest/gtest.h>

namespace lockstep::cli {
namespace slurm_time_test {

TEST(SlurmTime, EachFormOfSbatch) {
  EXPECT_EQ(slurm_time_s("90"), 5400);
  EXPECT_EQ(slurm_time_s("90:30"), 5430);
  EXPECT_EQ(slurm_time_s("24:00:00"), 86400);
  EXPECT_EQ(slurm_time_s("1:02:03"), 3723);
  EXPECT_EQ(slurm_time_s("2-12"), 216000);
  EXPECT_EQ(slurm_time_s("1-00:30"), 88200);
  EXPECT_EQ(slurm_time_s("1-00:00:01"), 86401);
  for (const char* none : {"0", "UNLIMITED", "INFINITE"}) EXPECT_EQ(slurm_time_s(none), 0) << none;
}

TEST(SlurmTime, OtherTextsAreNone) {
  for (const char* text : {"",          "foo",       "1h", "-1",    "1.5",
                           " 1",        "1 ",        ":",  "1:",    ":1",
                           "1:2:3:4",   "-",         "1-", "-1:00", "1-2-3",
                           "1-1:1:1:1", "unlimited", "+1", "0x10",  "99999999999999999999"})
    EXPECT_EQ(slurm_time_s(text), std::nullopt) << text;
}

}  // namespace slurm_time_test
}  // namespace lockstep::cli
