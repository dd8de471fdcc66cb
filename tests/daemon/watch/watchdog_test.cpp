#include "daemon/watch/watchdog.h"

#include <atomic>
#include <chrono>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files/files.h"
#include "base/log.h"
#include "base/trace_span.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::daemon {
namespace watchdog_test {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

/// A rank whose loop the test turns.
class WatchdogOfALoop : public ::testing::Test {
 protected:
  void watch(double slow_s, double hang_s) {
    watchdog_.emplace(WatchdogOptions{slow_s, hang_s}, 3, folder_.path(), health_,
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
  metrics::Health health_;
  std::atomic<int> num_aborts_ = 0;
  std::string what_;
  std::optional<Watchdog> watchdog_;
};

TEST_F(WatchdogOfALoop, LeavesALoopThatTurnsAlone) {
  const int64_t warnings = log::num_lines(log::Level::kWarning);
  watch(0.3, 0.4);
  turn_for(milliseconds(1500));
  EXPECT_EQ(num_aborts_, 0);
  EXPECT_EQ(log::num_lines(log::Level::kWarning), warnings);
}

TEST_F(WatchdogOfALoop, EndsOneThatStandsStillAndSaysWhere) {
  health_.note_step();
  watch(0.1, 0.4);
  const int64_t warnings = log::num_lines(log::Level::kWarning);
  const trace::Span span("all-reduce", 5);
  EXPECT_THAT(abort_text(), AllOf(HasSubstr("rank 3 hangs: 0.4"), HasSubstr("1 step(s) done here"),
                                  HasSubstr("stands in 'all-reduce' 5")));
  EXPECT_EQ(log::num_lines(log::Level::kWarning), warnings + 1) << "slow is said once";
  EXPECT_THAT(files::read(folder_.path() / "lockstep-events-3.json"), HasSubstr("\"all-reduce\""));
}

TEST_F(WatchdogOfALoop, ARestoreAndAFinishedRunMayTakeTheirTime) {
  for (const metrics::RunState state :
       {metrics::RunState::kRestoring, metrics::RunState::kFinished}) {
    health_.note_state(state);
    watch(0.05, 0.1);
    std::this_thread::sleep_for(milliseconds(400));
    EXPECT_EQ(num_aborts_, 0);
  }
}

TEST_F(WatchdogOfALoop, ZeroMeansNever) {
  watch(0.05, 0);
  std::this_thread::sleep_for(milliseconds(400));
  EXPECT_EQ(num_aborts_, 0);
}

}  // namespace watchdog_test
}  // namespace lockstep::daemon
