#include "daemon/watch/watchdog.h"

#include <atomic>
#include <chrono>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files/files.h"
#include "base/log.h"
#include "base/trace/trace_span.h"
#include "dist/self_communicator.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::daemon {
namespace watchdog_test {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

/// A rank whose loop the test turns.
class WatchdogOfALoop : public ::testing::Test {
 protected:
  void watch(const WatchdogOptions& options) {
    watchdog_.emplace(options, 3, events_, health_,
                      WatchdogActions{.before_abort = {}, .abort = [this](const std::string& what) {
                                        if (num_aborts_++ == 0) what_ = what;
                                      }});
  }
  void turn_for(milliseconds time) {
    for (const auto end = std::chrono::steady_clock::now() + time;
         std::chrono::steady_clock::now() < end;) {
      health_.note_turn();
      std::this_thread::sleep_for(milliseconds(5));
    }
  }
  std::string abort_text() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (num_aborts_ == 0 && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(milliseconds(5));
    watchdog_.reset();
    return what_;
  }

  tests::TemporaryFolder folder_;
  dist::SelfCommunicator alone_;
  RankEvents events_{alone_, folder_.path()};
  metrics::Health health_;
  std::atomic<int> num_aborts_ = 0;
  std::string what_;
  std::optional<Watchdog> watchdog_;
};

TEST_F(WatchdogOfALoop, LeavesALoopThatTurnsAlone) {
  const int64_t warnings = log::num_lines(log::Level::kWarning);
  watch({.slow_s = 0.3, .hang_s = 0.4});
  turn_for(milliseconds(1500));
  EXPECT_EQ(num_aborts_, 0);
  EXPECT_EQ(log::num_lines(log::Level::kWarning), warnings);
}

TEST_F(WatchdogOfALoop, EndsOneThatStandsStillAndSaysWhere) {
  health_.note_step();
  watch({.slow_s = 0.1, .hang_s = 0.4});
  const int64_t warnings = log::num_lines(log::Level::kWarning);
  const trace::Span span("all-reduce", 5);
  EXPECT_THAT(abort_text(), AllOf(HasSubstr("rank 3 hangs: 0.4"), HasSubstr("1 step(s) done here"),
                                  HasSubstr("stands in 'all-reduce' 5")));
  EXPECT_EQ(log::num_lines(log::Level::kWarning), warnings + 1) << "slow is said once";
  EXPECT_THAT(files::read(folder_.path() / "lockstep-events-0.json"), HasSubstr("\"all-reduce\""));
}

TEST_F(WatchdogOfALoop, FollowsAnotherLimitFromThenOn) {
  watch({.slow_s = 0.2, .hang_s = 0.4});
  watchdog_->set_limit("step.hang_seconds", 0);
  health_.note_state(metrics::RunState::kTraining);
  std::this_thread::sleep_for(milliseconds(1000));
  EXPECT_EQ(num_aborts_, 0);
  watchdog_->set_limit("step.hang_seconds", 0.3);
  EXPECT_THAT(abort_text(), HasSubstr("watchdog.step.hang_seconds"));
}

TEST(WatchdogLimits, EachKeyIsFound) {
  WatchdogOptions options;
  options.set("slow_seconds", 7);
  options.set("hang_seconds", 8);
  options.set("save.slow_seconds", 9);
  options.set("mask_update.hang_seconds", 10);
  EXPECT_EQ(options.slow_s_of(WatchPhase::kStep), 7);
  EXPECT_EQ(options.hang_s_of(WatchPhase::kSave), 8);
  EXPECT_EQ(options.slow_s_of(WatchPhase::kSave), 9);
  EXPECT_EQ(options.hang_s_of(WatchPhase::kMaskUpdate), 10);
}

TEST_F(WatchdogOfALoop, ADiskThatHangsHoldsUpNoEnd) {
  const auto begin = std::chrono::steady_clock::now();
  watchdog_.emplace(
      WatchdogOptions{.slow_s = 0.1, .hang_s = 0.2}, 3, events_, health_,
      WatchdogActions{.before_abort =
                          [&](const std::string&) {
                            const auto end = begin + std::chrono::seconds(20);
                            while (num_aborts_ == 0 && std::chrono::steady_clock::now() < end)
                              std::this_thread::sleep_for(milliseconds(5));
                          },
                      .abort = [this](const std::string&) { ++num_aborts_; }});
  (void)abort_text();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST_F(WatchdogOfALoop, ARunThatHasEndedMayTakeItsTime) {
  for (const metrics::RunState state : {metrics::RunState::kFinished, metrics::RunState::kFailed}) {
    health_.note_state(state);
    watch({.slow_s = 0.05, .hang_s = 0.1});
    std::this_thread::sleep_for(milliseconds(400));
    EXPECT_EQ(num_aborts_, 0);
  }
}

/// What the loop is at, as it shows it.
struct Shown {
  WatchPhase phase;
  metrics::RunState state;
  const char* span;
};

class WatchdogOfALoopIn : public WatchdogOfALoop, public ::testing::WithParamInterface<Shown> {};

TEST_P(WatchdogOfALoopIn, APhaseHasItsOwnLimitsAndTheOthersAreNotItsOwn) {
  const auto [phase, state, name] = GetParam();
  health_.note_state(state);
  const trace::Span span(name);
  WatchdogOptions options{.slow_s = 0.05, .hang_s = 0.05};
  for (int i = 0; i < kNumWatchPhases; ++i) options.phases[static_cast<size_t>(i)] = {60, 0};
  options.phases[static_cast<size_t>(phase)] = {0.1, 0.4};
  const int64_t warnings = log::num_lines(log::Level::kWarning);
  watch(options);
  EXPECT_THAT(abort_text(),
              AllOf(HasSubstr("rank 3 hangs: 0.4"),
                    HasSubstr(std::string("(watchdog.") + phase_name(phase) + ".hang_seconds)")));
  EXPECT_EQ(log::num_lines(log::Level::kWarning), warnings + 1);
  options.phases[static_cast<size_t>(phase)] = {60, 0};  // and now only the others have limits
  for (int i = 0; i < kNumWatchPhases; ++i)
    if (i != static_cast<int>(phase)) options.phases[static_cast<size_t>(i)] = {0.05, 0.1};
  num_aborts_ = 0;
  watch(options);
  std::this_thread::sleep_for(milliseconds(400));
  EXPECT_EQ(num_aborts_, 0);
}

INSTANTIATE_TEST_SUITE_P(
    EachPhase, WatchdogOfALoopIn,
    ::testing::Values(Shown{WatchPhase::kInit, metrics::RunState::kInitializing, "data"},
                      Shown{WatchPhase::kInit, metrics::RunState::kRestoring, "data"},
                      Shown{WatchPhase::kStep, metrics::RunState::kTraining, "backward"},
                      Shown{WatchPhase::kEvaluation, metrics::RunState::kValidating, "evaluation"},
                      Shown{WatchPhase::kMaskUpdate, metrics::RunState::kTraining, "masks"},
                      Shown{WatchPhase::kSave, metrics::RunState::kTraining, "wait for a save"},
                      Shown{WatchPhase::kSave, metrics::RunState::kSaving, ""},
                      Shown{WatchPhase::kSave, metrics::RunState::kDraining, ""}));

TEST_F(WatchdogOfALoop, ZeroMeansNever) {
  watch({.slow_s = 0.05, .hang_s = 0});
  std::this_thread::sleep_for(milliseconds(400));
  EXPECT_EQ(num_aborts_, 0);
}

}  // namespace watchdog_test
}  // namespace lockstep::daemon
