#include <array>
#include <limits>
#include <regex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "full_page.h"
#include "metrics/live_page.h"

namespace lockstep::metrics {
namespace live_test {

using nlohmann::json;
using ::testing::ElementsAre;

/// Steps that a history of `max_points` keeps of the first `num_steps`.
std::vector<int64_t> kept_of(size_t max_points, int64_t num_steps) {
  LiveHistory history(max_points);
  for (int64_t step = 1; step <= num_steps; ++step) history.add({.step = step});
  std::vector<int64_t> steps;
  for (const LivePoint& point : history.points()) steps.push_back(point.step);
  return steps;
}

TEST(LiveHistory, KeepsEveryStepWhileTheyAreFew) {
  EXPECT_THAT(kept_of(4, 0), ElementsAre());
  EXPECT_THAT(kept_of(4, 1), ElementsAre(1));
  EXPECT_THAT(kept_of(4, 4), ElementsAre(1, 2, 3, 4));
}

TEST(LiveHistory, ThenEverySecondAndEveryFourthAndAlwaysTheNewest) {
  EXPECT_THAT(kept_of(4, 5), ElementsAre(1, 3, 5));
  EXPECT_THAT(kept_of(4, 6), ElementsAre(1, 3, 5, 6));
  EXPECT_THAT(kept_of(4, 7), ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(kept_of(4, 9), ElementsAre(1, 5, 9));
  EXPECT_THAT(kept_of(4, 12), ElementsAre(1, 5, 9, 12));
}

TEST(LiveHistory, StaysSmallHoweverLongTheRun) {
  EXPECT_LE(kept_of(500, 1000000).size(), 501u);
  EXPECT_GE(kept_of(500, 1000000).size(), 245u);
}

TEST(LiveJson, HoldsTheCurvesWithTheRatesOfTheirOwnSteps) {
  TrainingMetrics all(tests::some_facts());
  const auto step = [&](int64_t number, double rate) {
    all.record_step(tests::some_step(number));
    all.recipe().set_rates(std::array{GroupSample{rate, 0}, GroupSample{9, 0}});
    all.recipe().set_parameter_counts(
        {.num_parameters = 10, .num_prunable = 4, .num_pruned = number});
  };
  step(1, 0.5);
  EXPECT_EQ(json::parse(all.live())["history"]["step"], json::array()) << "its rates may come yet";
  step(2, 0.25);
  step(3, 0.125);
  const json history = json::parse(all.live())["history"];
  EXPECT_EQ(history["step"], json({1, 2}));
  EXPECT_EQ(history["learning_rate"], json({0.5, 0.25}));
  EXPECT_EQ(history["sparsity"], json({0.25, 0.5}));
  EXPECT_EQ(history["loss"], json({2.3, 2.3}));
  EXPECT_EQ(history["num_samples"], json({32, 64}));
}

TEST(LiveJson, ShowsTheSeriesThatThePageUses) {
  TrainingMetrics all(tests::some_facts());
  tests::record_everything(&all);
  all.set_ranks({{"0", "n1", "n1:9464"}, {"1", "n2", "n2:9464"}});
  const json live = json::parse(all.live());
  EXPECT_EQ(live["run"], "digits \"quoted\"\\");
  EXPECT_EQ(live["world_size"], 2);
  EXPECT_EQ(live["ranks"][1],
            json({{"rank", "1"}, {"node", "n2"}, {"address", "n2:9464"}, {"query", ""}}));
  const json& series = live["series"];
  EXPECT_EQ(series["lockstep_step"], 1);
  EXPECT_EQ(series["lockstep_learning_rate{weights}"], 0.1);
  EXPECT_EQ(series["lockstep_run_state{initializing}"], 1);
  EXPECT_EQ(series["lockstep_step_phase_seconds_total{data}"], 0.001);
  EXPECT_EQ(series["lockstep_step_duration_seconds_count"], 1);
  EXPECT_EQ(series["lockstep_step_duration_seconds_sum"], 0.01);
  EXPECT_FALSE(series.contains("lockstep_http_requests_total"));
}

TEST(LiveJson, EverySeriesOfThePageIsInIt) {
  TrainingMetrics all(tests::some_facts());
  tests::record_everything(&all);
  const json series = json::parse(all.live())["series"];
  const std::string page(live_page());
  const std::regex name("[\"](lockstep_\\w+(\\{\\w+\\})?|process_\\w+)[\"]");
  int num_found = 0;
  for (std::sregex_iterator it(page.begin(), page.end(), name), end; it != end; ++it, ++num_found)
    EXPECT_TRUE(series.contains((*it)[1])) << (*it)[1];
  EXPECT_GT(num_found, 10);
}

TEST(LiveJson, WhatIsNoNumberIsNullAndWhatIsNoTextIsReplaced) {
  RunFacts facts = tests::some_facts();
  facts.run_name = "caf\xe9";
  TrainingMetrics all(facts);
  StepSample sample = tests::some_step(1);
  sample.loss = std::numeric_limits<double>::quiet_NaN();
  all.record_step(sample);
  sample.step = 2;
  sample.loss = std::nullopt;
  all.record_step(sample);
  sample.step = 3;
  all.record_step(sample);
  const json live = json::parse(all.live());
  EXPECT_EQ(live["history"]["loss"], json({nullptr, nullptr}));
  EXPECT_EQ(live["series"]["lockstep_train_loss"], nullptr);
  EXPECT_EQ(live["run"], "caf\ufffd");
}

TEST(LiveJson, AnotherRankHasNoCurves) {
  TrainingMetrics all(tests::some_facts(false));
  all.record_step(tests::some_step(1));
  all.record_step(tests::some_step(2));
  const json live = json::parse(all.live());
  EXPECT_EQ(live["history"]["step"], json::array());
  EXPECT_FALSE(live["series"].contains("lockstep_step"));
  EXPECT_EQ(live["series"]["lockstep_steps_total"], 2);
}

}  // namespace live_test
}  // namespace lockstep::metrics
