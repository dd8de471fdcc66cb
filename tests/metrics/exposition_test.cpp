#include "metrics/exposition.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log.h"

namespace lockstep::metrics {
namespace exposition_test {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

class ExpositionTest : public ::testing::Test {
 protected:
  HttpResponse get(std::string_view target, int at_s = 0) const {
    return pages.handle(target, start + seconds(at_s));
  }

  const Health::Clock::time_point start{seconds(5000)};
  Health health{start};
  Exposition pages{{.turn_limit_s = 10, .step_limit_s = 20, .process = "a1b2"},
                   health,
                   {.metrics = [](PageFormat) { return std::string("lockstep_step 1\n"); },
                    .live = [] { return std::string("{}\n"); }}};
};

TEST_F(ExpositionTest, MetricsHaveTheTypeThatPrometheusWants) {
  const HttpResponse response = get("/metrics");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.content_type, "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_EQ(response.body, "lockstep_step 1\n");
  EXPECT_EQ(get("/metrics?x=1").status, 200);
}

TEST_F(ExpositionTest, MetricsForAnotherProcessAreNotThisOnes) {
  EXPECT_EQ(get("/metrics?process=a1b2").status, 200);
  EXPECT_EQ(get("/metrics?x=1&process=a1b2&y=2").status, 200);
  for (const char* target : {"/metrics?process=c3d4", "/metrics?process=", "/metrics?process=a1b22",
                             "/metrics?x=1&process=c3d4"})
    EXPECT_EQ(get(target).status, 404) << target;
  EXPECT_EQ(get("/metrics?preprocess=c3d4").status, 200);
  EXPECT_EQ(pages.num_scrapes(), 3) << "what was meant for another process is no scrape";
}

TEST_F(ExpositionTest, ReadyOnceTheWorldHasFormedAndAStepIsDone) {
  EXPECT_EQ(get("/readyz").status, 503);
  health.note_world_formed();
  EXPECT_EQ(get("/readyz").status, 503);
  EXPECT_EQ(get("/readyz").body, "step: 0 steps done\nnot ok\n");
  health.note_step(start);
  EXPECT_EQ(get("/readyz").status, 200);
  EXPECT_EQ(get("/readyz").body, "ok\n");
}

TEST_F(ExpositionTest, LiveWhileTheLoopTurns) {
  EXPECT_EQ(get("/livez", 10).status, 200);
  EXPECT_EQ(get("/livez", 11).status, 503);
  health.note_turn(start + seconds(11));
  EXPECT_EQ(get("/livez", 21).status, 200);
}

TEST_F(ExpositionTest, HealthyWhileStepsGoOn) {
  health.note_step(start);
  health.note_turn(start + seconds(20));  // validation turns the loop, and makes no step
  EXPECT_EQ(get("/healthz", 20).status, 200);
  EXPECT_EQ(get("/healthz", 21).status, 503);
  EXPECT_THAT(get("/healthz", 21).body, HasSubstr("step: 1 done, last 21.0 s ago, limit 20 s"));
  health.note_step(start + seconds(21));
  EXPECT_EQ(get("/healthz", 21).status, 200);
  EXPECT_EQ(get("/healthz", 32).status, 503) << "the loop stands still";
}

TEST_F(ExpositionTest, AFailedRunIsNotHealthyAndAFinishedOneNeedsNoSteps) {
  health.note_turn(start + seconds(30));
  health.note_state(RunState::kFinished);
  EXPECT_EQ(get("/healthz", 30).status, 200);
  EXPECT_EQ(get("/healthz", 3600).status, 200) << "its pages stay for a last scrape";
  health.note_state(RunState::kFailed);
  EXPECT_EQ(get("/healthz", 0).status, 503);
  EXPECT_EQ(get("/livez", 0).status, 200);
}

TEST_F(ExpositionTest, APauseNeedsNoSteps) {
  health.note_step(start);
  health.note_state(RunState::kPaused);
  health.note_turn(start + seconds(3600));
  EXPECT_EQ(get("/healthz", 3600).status, 200);
  EXPECT_EQ(get("/healthz", 3611).status, 503) << "the loop stands still";
}

TEST_F(ExpositionTest, AnEvaluationAndASaveNeedNoSteps) {
  health.note_step(start);
  for (const RunState state : {RunState::kValidating, RunState::kSaving}) {
    health.note_state(state);
    health.note_turn(start + seconds(3600));
    EXPECT_EQ(get("/healthz", 3600).status, 200) << state_name(state);
    EXPECT_EQ(get("/healthz", 4201).status, 503) << "the loop stands still";
  }
}

TEST_F(ExpositionTest, ARestoreMayTakeLongerThanTheLimits) {
  health.note_state(RunState::kRestoring);
  EXPECT_EQ(get("/livez", 3600).status, 200);
  EXPECT_EQ(get("/healthz", 3600).status, 200);
  EXPECT_EQ(get("/readyz", 3600).status, 503);
  health.note_restored(start + seconds(3600));  // both limits count from here
  EXPECT_EQ(health.state(), RunState::kInitializing);
  EXPECT_EQ(get("/healthz", 3610).status, 200);
  EXPECT_EQ(get("/healthz", 3611).status, 503);
}

/// Log of a run that pauses and is stopped.
std::string log_of_states(Health* told, log::Level level) {
  log::configure_console({.level = level});
  log::configure({.console = level});
  ::testing::internal::CaptureStderr();
  for (const RunState state : {RunState::kTraining, RunState::kTraining, RunState::kPaused,
                               RunState::kPaused, RunState::kDraining})
    told->note_state(state);
  const std::string text = ::testing::internal::GetCapturedStderr();
  log::configure_console({});
  log::configure({});
  return text;
}

TEST(Health, TellsEachChangeOfStateOnceAndTheConsoleOnlyWhatHasNoLineOfItsOwn) {
  Health all(Health::Clock::now(), true), shown(Health::Clock::now(), true), other;
  const std::string text = log_of_states(&all, log::Level::kDebug);
  EXPECT_THAT(text, HasSubstr("[state] training (was initializing)"));
  EXPECT_THAT(text, HasSubstr("[state] paused (was training)"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
  const std::string info = log_of_states(&shown, log::Level::kInfo);
  EXPECT_THAT(info, HasSubstr("I [state] draining (was paused)"));
  EXPECT_EQ(std::count(info.begin(), info.end(), '\n'), 1);
  EXPECT_EQ(log_of_states(&other, log::Level::kDebug), "") << "another rank's";
}

TEST_F(ExpositionTest, VerboseShowsEveryCheck) {
  EXPECT_EQ(get("/readyz?verbose").body,
            "[-] world: not all ranks have joined\n[-] step: 0 steps done\nnot ok\n");
  health.note_step(start);
  health.note_world_formed();
  EXPECT_EQ(get("/readyz?verbose").body, "[+] world: formed\n[+] step: 1 steps done\nok\n");
  EXPECT_EQ(get("/healthz?verbose=1").body,
            "[+] loop: last progress 0.0 s ago, limit 10 s\n[+] step: 1 done, last 0.0 s ago, "
            "limit 20 s\n"
            "[+] state: initializing\nok\n");
}

TEST_F(ExpositionTest, TheLivePageNeedsNothingFromElsewhere) {
  const HttpResponse response = get("/");
  EXPECT_EQ(response.content_type, "text/html; charset=utf-8");
  EXPECT_THAT(response.body, HasSubstr("<!doctype html>"));
  EXPECT_THAT(response.body, HasSubstr("</html>"));
  for (const char* foreign : {"<script src", "<link rel=\"stylesheet", "@import", "url(", "//cdn"})
    EXPECT_THAT(response.body, Not(HasSubstr(foreign)));
}

TEST_F(ExpositionTest, OnlyThePageOfRankZeroMayReadLiveDataOfAnotherRank) {
  EXPECT_EQ(get("/live.json").body, "{}\n");
  EXPECT_EQ(get("/live.json").content_type, "application/json");
  EXPECT_EQ(get("/live.json").readable_from, "");
  pages.share_live_with("http://n1:9464");
  EXPECT_EQ(get("/live.json").readable_from, "http://n1:9464");
  EXPECT_EQ(get("/metrics").readable_from, "");
}

TEST_F(ExpositionTest, TargetsAreThereOnceTheyAreSet) {
  EXPECT_EQ(get("/targets.json").status, 404);
  pages.set_targets("[]\n");
  EXPECT_EQ(get("/targets.json").status, 200);
  EXPECT_EQ(get("/targets.json").content_type, "application/json");
  EXPECT_EQ(get("/targets.json").body, "[]\n");
}

TEST_F(ExpositionTest, CountsScrapesOfTheMetricsAlone) {
  EXPECT_EQ(pages.num_scrapes(), 0);
  for (const char* target : {"/metrics", "/metrics?x", "/livez", "/live.json", "/nowhere"})
    get(target);
  EXPECT_EQ(pages.num_scrapes(), 2);
}

TEST_F(ExpositionTest, OtherPathsAreNotFoundAndShareOneCounter) {
  for (const char* target : {"", "/x", "/metrics/", "/../etc/passwd", "?verbose", "/METRICS"}) {
    const HttpResponse response = get(target);
    EXPECT_EQ(response.status, 404) << target;
    EXPECT_EQ(response.route, "other") << target;
    EXPECT_THAT(response.body, HasSubstr("/metrics"));
  }
}

}  // namespace exposition_test
}  // namespace lockstep::metrics
