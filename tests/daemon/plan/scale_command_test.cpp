#include "daemon/plan/scale_command.h"

#include <gmock/gmock.h>

#include <limits>

#include "base/error.h"

namespace lockstep::daemon {
namespace scale_command_test {

using ::testing::HasSubstr;

/// Refused as a fault of the command line, before anything is measured.
std::string refusal_of(ScaleOptions options) {
  options.file = LOCKSTEP_SOURCE_DIR "/configs/digits.yaml";
  try {
    (void)scale_command(options);
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kUsage);
    return fault.what();
  }
  return "it was not refused";
}

TEST(ScaleCommand, RefusesNumbersWithoutSense) {
  EXPECT_THAT(refusal_of({.ranks = 0}), HasSubstr("--scale is 0, it must be 1 to 65536"));
  EXPECT_THAT(refusal_of({.ranks = -3}), HasSubstr("--scale is -3"));
  EXPECT_THAT(refusal_of({.ranks = 65537}), HasSubstr("--scale is 65537"));
  EXPECT_THAT(refusal_of({.ranks = 4, .ranks_per_host = 0}),
              HasSubstr("--ranks-per-host is 0, it must be 1 to 65536"));
  EXPECT_THAT(refusal_of({.ranks = 4, .ranks_per_host = int64_t{1} << 32}),
              HasSubstr("--ranks-per-host is 4294967296"));  // 0 in 32 bits
  EXPECT_THAT(refusal_of({.ranks = 6, .ranks_per_host = 4}), HasSubstr("give a multiple of 4"));
  EXPECT_THAT(refusal_of({.ranks = 2, .link_gbit = -1, .latency_us = 1}),
              HasSubstr("--link-gbit is -1, it must be above 0"));
  EXPECT_THAT(refusal_of({.ranks = 2, .link_gbit = 1, .latency_us = -1}),
              HasSubstr("--latency-us is -1, it must be 0 or more"));
  EXPECT_THAT(refusal_of({.ranks = 1, .disk_mbyte_s = std::numeric_limits<double>::quiet_NaN()}),
              HasSubstr("--disk-mbyte-s is nan"));
  EXPECT_THAT(refusal_of({.ranks = 2}), HasSubstr("give --link-gbit and --latency-us"));
}

}  // namespace scale_command_test
}  // namespace lockstep::daemon
