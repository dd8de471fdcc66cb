#include "cli/scale_command.h"

#include <gmock/gmock.h>

#include "base/error.h"

namespace lockstep::cli {
namespace scale_command_test {

using ::testing::HasSubstr;

/// 1 s a step on one rank, of it 0.4 s backward and 0.1 s update. The link carries 1448 MB/s of
/// data in 1514 MB/s of frames; a message takes 1 ms.
ScaleInputs inputs_of(double gradient_bytes, bool divides_batch = false,
                      int64_t ranks_per_host = 1) {
  return {.step_s = 1,
          .backward_s = 0.4,
          .update_s = 0.1,
          .gradient_bytes = gradient_bytes,
          .divides_batch = divides_batch,
          .ranks_per_host = ranks_per_host,
          .link_bytes_s = 1514e6,
          .latency_s = 1e-3};
}

/// Expected values by hand: 2 S (H - 1) / H bytes and 2 ceil(log2 H) messages.
TEST(ScaleModel, ExchangeIsBytesAndLatency) {
  const std::vector<ScaleRow> rows = scale_rows(inputs_of(1448e6), 12);
  EXPECT_EQ(rows[0].exchange_s, 0) << "one rank has no peers";
  EXPECT_NEAR(rows[1].exchange_s, 1 + 0.002, 1e-9);     // 2 hosts: S, 2 messages
  EXPECT_NEAR(rows[2].exchange_s, 1.5 + 0.004, 1e-9);   // 4 hosts: 1.5 S, 4 messages
  EXPECT_NEAR(rows[3].exchange_s, 1.75 + 0.006, 1e-9);  // 8 hosts: 1.75 S, 6 messages
  EXPECT_NEAR(rows[4].exchange_s, 2.0 * 11 / 12 + 0.008, 1e-9);
}

TEST(ScaleModel, BackwardHidesAPartOfTheExchange) {
  const ScaleRow row = scale_rows(inputs_of(1448e6), 2)[1];
  EXPECT_NEAR(row.compute_s, 1, 1e-9);
  EXPECT_NEAR(row.waited_s, 1.002 - 0.4, 1e-9);
  EXPECT_NEAR(row.step_s, 1.602, 1e-9);
  EXPECT_NEAR(row.communication, 0.602 / 1.602, 1e-9);
  EXPECT_NEAR(row.efficiency, 1 / 1.602, 1e-9);
}

TEST(ScaleModel, ExchangeShorterThanBackwardCostsNothing) {
  const ScaleRow row = scale_rows(inputs_of(144.8e6), 2)[1];
  EXPECT_EQ(row.waited_s, 0);
  EXPECT_EQ(row.efficiency, 1);
}

/// Each of 4 ranks computes a quarter of 0.9 s, hides a quarter of 0.4 s, and updates all weights.
TEST(ScaleModel, RanksDivideAGlobalBatch) {
  const ScaleRow row = scale_rows(inputs_of(1448e6, /*divides_batch=*/true), 4)[2];
  EXPECT_NEAR(row.compute_s, 0.1 + 0.225, 1e-9);
  EXPECT_NEAR(row.waited_s, 1.504 - 0.1, 1e-9);
  EXPECT_NEAR(row.efficiency, 0.25 / (0.325 + 1.404), 1e-9);
}

TEST(ScaleModel, RowsFillHosts) {
  const auto ranks_of = [](int64_t ranks_per_host, int64_t max_ranks) {
    std::vector<int64_t> ranks;
    for (const ScaleRow& row : scale_rows(inputs_of(1, false, ranks_per_host), max_ranks))
      ranks.push_back(row.ranks);
    return ranks;
  };
  EXPECT_EQ(ranks_of(1, 1), (std::vector<int64_t>{1}));
  EXPECT_EQ(ranks_of(1, 6), (std::vector<int64_t>{1, 2, 4, 6}));
  EXPECT_EQ(ranks_of(3, 12), (std::vector<int64_t>{1, 3, 6, 12}));
  EXPECT_EQ(ranks_of(8, 2), (std::vector<int64_t>{1, 2})) << "less than a host";
  EXPECT_EQ(scale_rows(inputs_of(1, false, 3), 12)[2].hosts, 2);
}

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
  EXPECT_THAT(refusal_of({.ranks = 6, .ranks_per_host = 4}), HasSubstr("give a multiple of 4"));
  EXPECT_THAT(refusal_of({.ranks = 2}), HasSubstr("give --link-gbit and --latency-us"));
  EXPECT_THAT(refusal_of({.ranks = 1, .step_ms = 2, .backward_ms = 1.5, .update_ms = 1}),
              HasSubstr("--backward-ms and --update-ms are parts of --step-ms"));
}

TEST(ScaleCommand, PrintsTheTableOfGivenNumbers) {
  const daemon::CommandResult result =
      scale_command({.file = LOCKSTEP_SOURCE_DIR "/configs/digits.yaml",
                     .overrides = {daemon::parse_set("data.batch_size_per_rank=32")},
                     .ranks = 2,
                     .link_gbit = 8 * 1.514,
                     .latency_us = 1000,
                     .step_ms = 1000,
                     .backward_ms = 400,
                     .update_ms = 100,
                     .gradient_mb = 1448});
  EXPECT_THAT(result.text, HasSubstr("1000.000 ms a step (given)"));
  EXPECT_THAT(result.text, HasSubstr("1602.000     37.6         62.4"));
}

}  // namespace scale_command_test
}  // namespace lockstep::cli
