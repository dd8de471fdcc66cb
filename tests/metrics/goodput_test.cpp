#include "metrics/goodput.h"

#include <fstream>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files/files.h"
#include "temporary_folder.h"

namespace lockstep::metrics {
namespace goodput_test {

using ::testing::HasSubstr;
using namespace std::chrono_literals;
using Clock = Goodput::Clock;

constexpr double kLineError_s = 0.001;  // the file has three decimals

StepSample step_of(int64_t number, double duration_s, const PhaseSeconds& phases = {}) {
  return {.step = number, .duration_s = duration_s, .phases = phases};
}

class GoodputTest : public ::testing::Test {
 protected:
  /// A start whose ranks begin `age` before now, and its time from then on.
  std::unique_ptr<Goodput> start(int64_t step, std::chrono::milliseconds age = 0ms,
                                 LaunchFacts launch = {}) {
    launch.began_s = unix_time_s() - std::chrono::duration<double>(age).count();
    auto made = std::make_unique<Goodput>(file_, step, launch);
    begin_ = Clock::now();  // writing the file may take long
    return made;
  }
  Clock::time_point at(std::chrono::milliseconds since_begin) const { return begin_ + since_begin; }
  RunTime read() const { return run_time_of(read_starts(file_)); }

  const tests::TemporaryFolder folder_;
  const std::filesystem::path file_ = folder_.path() / "run" / "goodput.csv";
  Clock::time_point begin_;
};

TEST_F(GoodputTest, EachSecondHasOneUse) {
  const auto goodput = start(0, 2000ms);
  goodput->enter(RunState::kTraining, at(1000ms));
  PhaseSeconds phases;
  phases.data = 0.25;
  phases.modifier = 0.125;
  goodput->step(step_of(1, 1, phases), 0.0625, at(2500ms));  // 0.5 s of the start
  goodput->enter(RunState::kValidating, at(2600ms));
  goodput->enter(RunState::kTraining, at(3600ms));
  goodput->enter(RunState::kPaused, at(3600ms));
  goodput->enter(RunState::kTraining, at(4100ms));
  goodput->end(StartEnd::kFinished, at(4200ms));
  const RunTime time = goodput->run_time();
  const double begin_error_s = 0.5;  // between the clocks' readings, on a busy machine
  EXPECT_NEAR(time.of(TimeUse::kStart), 3.5, begin_error_s);
  EXPECT_NEAR(time.of(TimeUse::kData), 0.25, 1e-6);
  EXPECT_NEAR(time.of(TimeUse::kMaskUpdate), 0.125, 1e-6);
  EXPECT_NEAR(time.of(TimeUse::kStraggler), 0.0625, 1e-6);
  EXPECT_NEAR(time.of(TimeUse::kProductive), 1 - 0.25 - 0.125 - 0.0625, 1e-6);
  EXPECT_NEAR(time.of(TimeUse::kEvaluation), 1, 1e-6);
  EXPECT_NEAR(time.of(TimeUse::kPause), 0.5, 1e-6);
  EXPECT_NEAR(time.of(TimeUse::kOther), 0.2, 1e-6);
  EXPECT_NEAR(time.wall_s(), 6.2, begin_error_s);
  EXPECT_NEAR(time.goodput(), time.of(TimeUse::kProductive) / time.wall_s(), 1e-9);
  EXPECT_NEAR(read().wall_s(), time.wall_s(), kNumTimeUses * kLineError_s);
}

TEST_F(GoodputTest, AnUpdateThatIsNotFiniteIsLost) {
  const auto goodput = start(0);
  StepSample skipped = step_of(1, 1);
  skipped.nonfinite = true;
  goodput->step(skipped, 0.5, at(1000ms));
  EXPECT_NEAR(goodput->run_time().of(TimeUse::kSkippedStep), 1, 1e-6);
  EXPECT_EQ(goodput->run_time().of(TimeUse::kProductive), 0);
}

TEST_F(GoodputTest, AStallIsCountedOnceWhereverTrainingWaited) {
  const auto goodput = start(0);
  goodput->step(step_of(1, 1), 0, at(1000ms));
  goodput->enter(RunState::kSaving, at(1000ms));
  goodput->enter(RunState::kTraining, at(1100ms));
  goodput->step(step_of(2, 1), 0, at(2300ms));  // 0.2 s between the steps
  goodput->save(0.5, at(2300ms));               // 0.1 in the state, 0.2 between, 0.2 within a step
  EXPECT_NEAR(goodput->run_time().of(TimeUse::kSaveStall), 0.5, 1e-6);
  EXPECT_NEAR(goodput->run_time().of(TimeUse::kOther), 0, 1e-6);
  EXPECT_NEAR(goodput->run_time().of(TimeUse::kProductive), 1.8, 1e-6);
}

TEST_F(GoodputTest, AKilledStartLeavesItsTimeAndItsWorkIsRepeated) {
  {
    const auto killed = start(0);
    killed->step(step_of(5, 1), 0, at(1000ms));
    killed->step(step_of(10, 1), 0, at(2000ms));
  }
  EXPECT_EQ(read().step, 10);
  std::vector<StartTime> starts = read_starts(file_);
  ASSERT_EQ(starts.size(), 1U);
  EXPECT_EQ(starts[0].end, StartEnd::kRunning);
  // The clock of the next start says 4 s after the last told second.
  const Goodput next(file_, 5, {.began_s = starts[0].end_s + 4});
  const RunTime time = next.run_time();
  EXPECT_EQ(time.num_starts, 2);
  EXPECT_NEAR(time.of(TimeUse::kDown), 4, 0.01);
  EXPECT_NEAR(time.of(TimeUse::kRepeatedWork), 1, 0.01);  // steps 6 to 10 of 10
  EXPECT_NEAR(time.of(TimeUse::kProductive), 1, 0.01);
  EXPECT_NEAR(time.goodput(), 1.0 / time.wall_s(), 0.01);
}

TEST_F(GoodputTest, RepeatedStepsAreNotCountedTwice) {
  const auto write = [&](int64_t first, int64_t last) {
    const auto killed = start(first);
    killed->step(step_of(last, 1), 0, at(1000ms));
  };
  write(0, 100);
  write(60, 90);
  const auto third = start(60);
  // 40 of the first start's 100 steps, and all 30 of the second one's.
  EXPECT_NEAR(third->run_time().of(TimeUse::kRepeatedWork), 0.4 + 1, 0.01);
  EXPECT_NEAR(third->run_time().of(TimeUse::kProductive), 0.6, 0.01);
}

TEST_F(GoodputTest, TheGapBelongsToHowTheStartBeforeItEnded) {
  const auto use_of_gap = [&](StartEnd end, const LaunchFacts& launch) {
    files::remove_file(file_);
    {
      const auto first = start(0);
      first->step(step_of(1, 1), 0, at(1000ms));
      if (end != StartEnd::kRunning) first->end(end, at(1000ms));
    }
    LaunchFacts facts = launch;
    facts.began_s = read_starts(file_)[0].end_s + 3;
    const RunTime time = Goodput(file_, 1, facts).run_time();
    for (const TimeUse use : {TimeUse::kDown, TimeUse::kHang, TimeUse::kQueue})
      if (time.of(use) > 2.9) return use;
    return TimeUse::kOther;
  };
  EXPECT_EQ(use_of_gap(StartEnd::kRunning, {}), TimeUse::kDown);
  EXPECT_EQ(use_of_gap(StartEnd::kRunning, {.is_after_hang = true}), TimeUse::kHang);
  EXPECT_EQ(use_of_gap(StartEnd::kStopped, {}), TimeUse::kQueue);
  EXPECT_EQ(use_of_gap(StartEnd::kFinished, {}), TimeUse::kQueue);
}

TEST_F(GoodputTest, AQueuedJobWaitsBeforeItsFirstStart) {
  const double now_s = unix_time_s();
  const Goodput queued(file_, 0, {.began_s = now_s, .queued_s = now_s - 30});
  EXPECT_NEAR(queued.run_time().of(TimeUse::kQueue), 30, 1e-6);
}

TEST_F(GoodputTest, AnotherRunInTheFolderOfAFinishedOneCountsFromZero) {
  {
    const auto first = start(0);
    first->step(step_of(1, 1), 0, at(1000ms));
    first->end(StartEnd::kFinished, at(1000ms));
  }
  EXPECT_EQ(start(0)->run_time().num_starts, 1);
}

TEST_F(GoodputTest, WorkThatAStoppedRunHasNotSavedIsRepeated) {
  {
    const auto first = start(0);
    first->step(step_of(1, 1), 0, at(1000ms));
    first->end(StartEnd::kStopped, at(1000ms));
  }
  EXPECT_NEAR(start(0)->run_time().of(TimeUse::kRepeatedWork), 1, 0.01);
}

TEST_F(GoodputTest, AStallWithinTheStateOfTheSaveIsCountedOnce) {
  const auto goodput = start(0);
  goodput->step(step_of(1, 1), 0, at(1000ms));
  for (const auto begin : {1000ms, 3000ms}) {  // checkpoint.wait_for: commit
    goodput->enter(RunState::kSaving, at(begin));
    goodput->save(1, at(begin + 1000ms));
    goodput->enter(RunState::kTraining, at(begin + 1000ms));
    goodput->step(step_of(2, 1), 0, at(begin + 2000ms));
  }
  EXPECT_NEAR(goodput->run_time().of(TimeUse::kSaveStall), 2, 1e-6);
  EXPECT_NEAR(goodput->run_time().of(TimeUse::kProductive), 3, 1e-6);
}

TEST_F(GoodputTest, AStartThatSeemsToHaveBegunBeforeTheLastOneEndedHasNoNegativeTime) {
  double last_s = 0;
  {
    const auto first = start(0);
    first->step(step_of(1, 1), 0, at(1000ms));
    last_s = first->run_time().wall_s();
  }
  const Goodput next(file_, 1, {.began_s = unix_time_s() - 1e6});
  for (const double seconds : next.run_time().seconds) EXPECT_GE(seconds, 0);
  EXPECT_LT(next.run_time().wall_s(), last_s + 2);
}

TEST_F(GoodputTest, AFolderThatCannotBeWrittenIsNoErrorOfTheRun) {
  files::write_atomically(folder_.path() / "run", "");  // a file in the folder's place
  const auto goodput = start(0);
  goodput->step(step_of(1, 1), 0, at(1000ms));
  EXPECT_NEAR(goodput->run_time().of(TimeUse::kProductive), 1, 1e-6);
}

TEST_F(GoodputTest, AFileThatIsDamagedIsReplaced) {
  start(0);
  std::ofstream(file_, std::ios::app) << std::string(400, 'x') << "\n";
  EXPECT_THROW((void)read_starts(file_), Error);
  EXPECT_EQ(start(3)->run_time().num_starts, 1);
  EXPECT_EQ(read_starts(file_).size(), 1U);
}

TEST_F(GoodputTest, TheTableNamesEachUse) {
  RunTime time{.num_starts = 2, .step = 40};
  time.seconds[static_cast<size_t>(TimeUse::kProductive)] = 60;
  time.seconds[static_cast<size_t>(TimeUse::kDown)] = 20;
  time.seconds[static_cast<size_t>(TimeUse::kQueue)] = 20;
  const std::string text = table_of(time);
  EXPECT_THAT(text, HasSubstr("75.0 % of 1m20s was training: 40 steps, 2 starts"));
  EXPECT_THAT(text, HasSubstr("down               20s   25.0 %  ██████████\n"));
  EXPECT_THAT(text, HasSubstr("queue              20s\n"));
}

}  // namespace goodput_test
}  // namespace lockstep::metrics
