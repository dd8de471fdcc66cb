#include "metrics/progress.h"

#include <limits>
#include <map>
#include <string>

#include <gtest/gtest.h>

namespace lockstep::metrics {
namespace progress_test {

using std::chrono::milliseconds;
using std::chrono::seconds;
const Progress::Clock::time_point kStart{seconds(1000)};

TEST(Progress, IsDueEveryInterval) {
  Progress progress(10, 0, kStart);
  EXPECT_FALSE(progress.is_due(kStart + milliseconds(9999)));
  EXPECT_TRUE(progress.is_due(kStart + seconds(10)));
  progress.line({}, kStart + seconds(12));
  EXPECT_FALSE(progress.is_due(kStart + seconds(21)));
  EXPECT_TRUE(progress.is_due(kStart + seconds(22)));
  EXPECT_FALSE(Progress(0, 0, kStart).is_due(kStart + seconds(1000000)));
}

TEST(Progress, TellsSpeedAndTimeLeftSinceTheLineBefore) {
  Progress progress(10, 100, kStart);  // resumed at step 100
  ProgressSample sample{.step = 120,
                        .num_steps = 1500,
                        .epoch = 2.4,
                        .loss = 0.34123,
                        .learning_rate = 0.05,
                        .sparsity = 0.45,
                        .busy_s = 8,
                        .data_s = 2,
                        .allreduce_s = 1,
                        .resident_bytes = 212.4 * 1024 * 1024,
                        .global_samples = 1280};
  // 20 steps in 10 s: 1380 steps left take 690 s.
  EXPECT_EQ(progress.line(sample, kStart + seconds(10)),
            "step 120/1500 (8%)  epoch 2.40  loss 0.3412  lr 0.05  128 samples/s  data 25%  "
            "all-reduce 12%  sparsity 45.0%  212 MiB  ETA 11m30s");
  sample.step = 220;
  sample.global_samples += 6400;
  sample.loss.reset();
  sample.busy_s += 10;
  sample.data_s += 1;
  sample.resident_bytes = 0;
  // 100 steps in 10 s: 1280 steps left take 128 s.
  EXPECT_EQ(
      progress.line(sample, kStart + seconds(20)),
      "step 220/1500 (14%)  epoch 2.40  loss -  lr 0.05  640 samples/s  data 10%  all-reduce 0%  "
      "sparsity 45.0%  ETA 2m08s");
  EXPECT_NE(progress.line(sample, kStart + seconds(30)).find("ETA ?"), std::string::npos)
      << "no step since";
}

TEST(Progress, TheBarIsDrawnFourTimesASecondWithTheSpeedOfTheLastTwoLines) {
  Progress progress(10, 0, kStart);
  ProgressSample sample{.step = 100, .num_steps = 400, .loss = 0.5, .global_samples = 1000};
  EXPECT_FALSE(progress.bar_is_due(kStart + milliseconds(249)));
  EXPECT_TRUE(progress.bar_is_due(kStart + milliseconds(250)));
  EXPECT_EQ(progress.bar(sample, kStart + seconds(5)),
            "[#####---------------] 25%  step 100/400  loss 0.5000  200 samples/s  ETA 15s");
  EXPECT_FALSE(progress.bar_is_due(kStart + milliseconds(5249)));
  progress.line(sample, kStart + seconds(10));
  sample.step = 200;
  sample.global_samples = 3000;
  EXPECT_EQ(progress.bar(sample, kStart + seconds(20)),
            "[##########----------] 50%  step 200/400  loss 0.5000  150 samples/s  ETA 20s")
      << "since the start";
  EXPECT_FALSE(Progress(0, 0, kStart).bar_is_due(kStart + seconds(1000000)));
}

TEST(Progress, DurationsAreShort) {
  EXPECT_EQ(duration_text(-1), "0s");
  EXPECT_EQ(duration_text(59.4), "59s");
  EXPECT_EQ(duration_text(92), "1m32s");
  EXPECT_EQ(duration_text(7500), "2h05m");
  EXPECT_EQ(duration_text(4 * 3600 + 3 * 86400), "3d04h");
  EXPECT_EQ(duration_text(std::numeric_limits<double>::infinity()), "?");
  EXPECT_EQ(duration_text(std::numeric_limits<double>::quiet_NaN()), "?");
}

TEST(Progress, BarIsFilledByShareOfSteps) {
  EXPECT_EQ(with_bar("x", 0, 8, 4), "[----] x");
  EXPECT_EQ(with_bar("x", 4, 8, 4), "[##--] x");
  EXPECT_EQ(with_bar("x", 9, 8, 4), "[####] x");
  EXPECT_EQ(with_bar("x", 1, 0, 4), "[----] x");
}

TEST(Progress, NoColorMeansNoColor) {
  EXPECT_TRUE(wants_colors([](const char*) { return nullptr; }));
  EXPECT_TRUE(wants_colors([](const char*) { return ""; }));
  EXPECT_FALSE(wants_colors([](const char*) { return "1"; }));
}

TEST(Progress, NobodyWatchesUnderALauncher) {
  std::map<std::string, std::string> variables{{"TERM", "xterm"}};
  const auto variable = [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  EXPECT_TRUE(is_interactive(true, variable));
  EXPECT_FALSE(is_interactive(false, variable));
  variables["OMPI_COMM_WORLD_RANK"] = "0";
  EXPECT_FALSE(is_interactive(true, variable));
  variables = {{"TERM", "dumb"}};
  EXPECT_FALSE(is_interactive(true, variable));
}

}  // namespace progress_test
}  // namespace lockstep::metrics
