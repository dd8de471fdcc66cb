#include "daemon/control/watchdog.h"

#include <atomic>
#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files/files.h"
#include "base/log.h"
#include "base/trace.h"
#include "dist/communicator.h"
#include "tests/support/patience.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::daemon {
namespace watchdog_test {

using ::testing::HasSubstr;

/// The time of "rank 3 hangs: 0.4 s without a turn".
double hung_s(const std::string& text) {
  const size_t at = text.find("rank 3 hangs: ");
  return at == std::string::npos ? 0 : std::strtod(text.c_str() + at + 14, nullptr);
}

/// A rank whose loop the test turns.
class WatchdogOfALoop : public ::testing::Test {
 protected:
  void watch(const WatchdogOptions& options) {
    watchdog_.emplace(options, 3, events_, health_,
                      WatchdogActions{.before_abort = {}, .abort = [this](const std::string& what) {
                                        if (num_aborts_++ == 0) what_ = what;
                                      }});
  }
  /// True if so many turns followed one another, none more than `most_s` after the one before.
  bool turns(int number, double most_s) {
    for (int i = 0; i < number; ++i) {
      const tests::Patience since_last(0);
      health_.note_turn();
      tests::pause_between_looks();
      if (since_last.passed_s() > most_s) return health_.note_turn(), false;
    }
    return true;
  }
  std::string abort_text() {
    EXPECT_TRUE(tests::comes_true([&] { return num_aborts_ > 0; }));
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
  // A machine that stops this thread for longer than an alarm takes gets more tries.
  EXPECT_TRUE(tests::comes_true([&] {
    num_aborts_ = 0;
    const int64_t warnings = log::num_lines(log::Level::kWarning);
    watch({.slow_s = 0.3, .hang_s = 0.4});
    const bool never_stopped = turns(300, 0.2);
    watchdog_.reset();
    if (!never_stopped) return false;
    EXPECT_EQ(num_aborts_, 0);
    EXPECT_EQ(log::num_lines(log::Level::kWarning), warnings);
    return true;
  }));
}

TEST_F(WatchdogOfALoop, EndsOneThatStandsStillAndSaysWhere) {
  health_.note_step();
  watch({.slow_s = 0.1, .hang_s = 0.4});
  const int64_t warnings = log::num_lines(log::Level::kWarning);
  const trace::Span span("all-reduce", 5);
  const std::string text = abort_text();
  EXPECT_THAT(
      text, AllOf(HasSubstr("1 step(s) done on this rank"), HasSubstr("it is in 'all-reduce' 5")));
  EXPECT_GE(hung_s(text), 0.4);
  EXPECT_EQ(log::num_lines(log::Level::kWarning), warnings + 1) << "slow is said once";
  EXPECT_THAT(files::read(folder_.path() / "lockstep-events-0.json"), HasSubstr("\"all-reduce\""));
}

TEST_F(WatchdogOfALoop, FollowsAnotherLimitFromThenOn) {
  watch({.slow_s = 0.2, .hang_s = 0.4});
  watchdog_->set_limit("step.hang_seconds", 0);
  health_.note_state(metrics::RunState::kTraining);
  EXPECT_TRUE(tests::stays_true([&] { return num_aborts_ == 0; }, 1));
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
  std::atomic<bool> hangs = true;
  watchdog_.emplace(WatchdogOptions{.slow_s = 0.1, .hang_s = 0.2}, 3, events_, health_,
                    WatchdogActions{.before_abort = [&](const std::string&) { hangs.wait(true); },
                                    .abort = [this](const std::string&) { ++num_aborts_; }});
  EXPECT_TRUE(tests::comes_true([&] { return num_aborts_ > 0; }));
  hangs = false;
  hangs.notify_all();
  watchdog_.reset();
}

TEST_F(WatchdogOfALoop, ARunThatHasEndedMayTakeItsTime) {
  for (const metrics::RunState state : {metrics::RunState::kFinished, metrics::RunState::kFailed}) {
    health_.note_state(state);
    watch({.slow_s = 0.05, .hang_s = 0.1});
    EXPECT_TRUE(tests::stays_true([&] { return num_aborts_ == 0; }, 0.4));
  }
}

/// State of the loop as it is displayed.
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
  const std::string text = abort_text();
  EXPECT_THAT(text, HasSubstr(std::string("(watchdog.") + phase_name(phase) + ".hang_seconds)"));
  EXPECT_GE(hung_s(text), 0.4);
  EXPECT_EQ(log::num_lines(log::Level::kWarning), warnings + 1);
  options.phases[static_cast<size_t>(phase)] = {60, 0};  // and now only the others have limits
  for (int i = 0; i < kNumWatchPhases; ++i)
    if (i != static_cast<int>(phase)) options.phases[static_cast<size_t>(i)] = {0.05, 0.1};
  num_aborts_ = 0;
  watch(options);
  EXPECT_TRUE(tests::stays_true([&] { return num_aborts_ == 0; }, 0.4));
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
  EXPECT_TRUE(tests::stays_true([&] { return num_aborts_ == 0; }, 0.4));
}

}  // namespace watchdog_test
}  // namespace lockstep::daemon
