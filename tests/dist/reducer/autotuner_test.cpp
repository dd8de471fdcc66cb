#include "dist/reduction_modes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/support/thread_world.h"

namespace lockstep::dist {
namespace autotuner_test {

using ::testing::ElementsAre;

constexpr int kSteps = 2 + 2 * Autotuner::kRounds;

/// Runs a whole trial; `seconds(second, step)` by item.
template <typename Seconds>
std::vector<bool> verdict_of(Communicator& comm, size_t num_items, const Seconds& seconds) {
  Autotuner trial;
  trial.start(num_items);
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_TRUE(trial.is_running());
    EXPECT_EQ(trial.times_second_way(), step % 2 == 1);
    const auto verdict = trial.add_step(seconds(trial.times_second_way(), step), comm);
    EXPECT_EQ(verdict.has_value(), step + 1 == kSteps);
    if (verdict) {
      EXPECT_FALSE(trial.is_running());
      EXPECT_FALSE(trial.times_second_way());
      return *verdict;
    }
  }
  return {};
}

TEST(Autotuner, TakesTheFasterWayOfEachItem) {
  tests::run_ranks(1, [](Communicator& comm) {
    EXPECT_THAT(verdict_of(comm, 3,
                           [](bool second, int) {
                             return std::vector<ItemSeconds>{
                                 {second ? 2.0 : 3.0, 0}, {0, second ? 3.0 : 2.0}, {1, 1}};
                           }),
                ElementsAre(true, false, false));
  });
}

TEST(Autotuner, FirstStepsAndOutliersDoNotCount) {
  tests::run_ranks(1, [](Communicator& comm) {
    EXPECT_THAT(
        verdict_of(
            comm, 1,
            [](bool second, int step) {
              const bool is_odd_one = step < 2 || step == 3 || step == 7;
              const double odd_s = second ? 100 : 0;
              return std::vector<ItemSeconds>{{is_odd_one ? odd_s : (second ? 1.0 : 2.0), 0}};
            }),
        ElementsAre(true));
  });
}

/// Rank 0 is late in the collectives of the second way. It waits for no rank, so only its own time
/// in them counts. Own work counts for the slowest rank.
TEST(Autotuner, WaitingForALateRankDoesNotCountAndTheVerdictIsShared) {
  tests::run_ranks(3, [](Communicator& comm) {
    const bool is_late = comm.rank() == 0;
    EXPECT_THAT(verdict_of(comm, 2,
                           [&](bool second, int) {
                             return std::vector<ItemSeconds>{
                                 {0.1, second ? (is_late ? 1.0 : 50.0) : 2.0},
                                 {second && is_late ? 9.0 : 0.1, 2.0}};
                           }),
                ElementsAre(true, false));
  });
}

TEST(Autotuner, MayBeginAnew) {
  tests::run_ranks(1, [](Communicator& comm) {
    Autotuner trial;
    EXPECT_FALSE(trial.is_running());
    trial.start(1);
    for (int step = 0; step < 7; ++step)
      (void)trial.add_step({{step % 2 == 0 ? 1.0 : 9.0, 0}}, comm);
    trial.start(2);
    EXPECT_FALSE(trial.times_second_way());
    EXPECT_THROW((void)trial.add_step({{1, 0}}, comm), Error);
    trial.start(0);
    EXPECT_FALSE(trial.is_running());
  });
}

}  // namespace autotuner_test
}  // namespace lockstep::dist
