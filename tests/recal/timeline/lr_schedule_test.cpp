#include <cmath>
#include <numbers>

#include <gmock/gmock.h>

#include "recal/schedule/timeline.h"
#include "tests/recal/recipes.h"

namespace lockstep::recal {
namespace lr_schedule_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string function(const std::string& more) {
  return "!LearningRateFunctionModifier {start_epoch: 1, end_epoch: 3, " + more + "}";
}

void expect_rates(const Timeline& timeline, const std::vector<std::pair<int64_t, double>>& rates) {
  for (const auto& [step, rate] : rates)
    EXPECT_NEAR(timeline.learning_rate_at(step), rate, 1e-15) << "step " << step;
}

TEST(CosPi, IsTheCosine) {
  for (int i = 0; i <= 4096; ++i) {
    const double t = i / 4096.0;
    EXPECT_NEAR(cos_pi(t), static_cast<double>(std::cos(std::numbers::pi_v<long double> * t)),
                2.3e-16)
        << t;
  }
  EXPECT_EQ(cos_pi(0), 1);
  EXPECT_EQ(cos_pi(0.5), 0);
  EXPECT_EQ(cos_pi(1), -1);
}

TEST(RateFunction, Linear) {
  const Timeline timeline =
      compiled(recipe_of({function("lr_func: linear, init_lr: 0.3, final_lr: 0.1")}), 10, 7.0);
  expect_rates(
      timeline,
      {{0, 7.0}, {9, 7.0}, {10, 0.3}, {15, 0.25}, {20, 0.2}, {29, 0.11}, {30, 0.1}, {99, 0.1}});
  EXPECT_EQ(timeline.actions().size(), 1U);  // one entry, however long
}

TEST(RateFunction, Cosine) {
  const Timeline timeline =
      compiled(recipe_of({function("lr_func: cosine, init_lr: 0.4, final_lr: 0")}), 10);
  expect_rates(timeline, {{10, 0.4},
                          {15, 0.2 + 0.2 * std::sqrt(0.5)},
                          {20, 0.2},
                          {25, 0.2 - 0.2 * std::sqrt(0.5)},
                          {30, 0},
                          {31, 0}});
}

TEST(RateFunction, CyclicLinearBeginsAnew) {
  const Timeline timeline = compiled(
      recipe_of(
          {function("lr_func: cyclic_linear, init_lr: 0.3, final_lr: 0.1, cycle_epochs: 0.8")}),
      10);
  expect_rates(timeline, {{10, 0.3}, {14, 0.2}, {17, 0.125}, {18, 0.3}, {26, 0.3}, {29, 0.225}});
  expect_rates(timeline, {{30, 0.225}, {99, 0.225}});  // the last rate stays
  // The default is a cycle of one epoch; in steps it is the same.
  for (const std::string cycle : {"", ", cycle_epochs: 1", ", cycle_steps: 10"}) {
    const Timeline by_epoch = compiled(
        recipe_of({function("lr_func: cyclic_linear, init_lr: 0.3, final_lr: 0.1" + cycle)}), 10);
    expect_rates(by_epoch, {{10, 0.3}, {15, 0.2}, {19, 0.12}, {20, 0.3}, {29, 0.12}});
  }
}

TEST(RateFunction, TheWindowBeginsBetweenTwoSteps) {
  const Timeline timeline = compiled(
      recipe_of(
          {"!LearningRateFunctionModifier {start_epoch: 0.5, end_epoch: 1.5, lr_func: linear, "
           "init_lr: 1, final_lr: 0}"}),
      7);
  EXPECT_EQ(timeline.actions().front().step, 4);  // 3.5 rounded up
  expect_rates(timeline, {{4, 1 - 0.5 / 7}, {10, 1 - 6.5 / 7}, {11, 0}});
  EXPECT_DOUBLE_EQ(timeline.actions().front().value, 1 - 0.5 / 7);
}

TEST(WarmRestarts, FollowTheCosineInEachCycle) {
  const Timeline timeline = compiled(
      recipe_of(
          {"!LearningRateModifier {start_epoch: 1, end_epoch: 6, lr_class: "
           "CosineAnnealingWarmRestarts, lr_kwargs: {lr_min: 0.02, cycle_epochs: 2}, init_lr: "
           "0.1, update_frequency: -1}"}),
      5, 0.5);
  expect_rates(timeline, {{4, 0.5}, {5, 0.1}, {10, 0.06}, {15, 0.1}, {25, 0.1}, {20, 0.06}});
  for (int64_t step = 5; step < 30; ++step) {
    const double t = static_cast<double>((step - 5) % 10) / 10;
    EXPECT_NEAR(timeline.learning_rate_at(step),
                0.02 + 0.08 * (1 + std::cos(std::numbers::pi * t)) / 2, 1e-15);
  }
  EXPECT_EQ(timeline.learning_rate_at(30), timeline.learning_rate_at(29));
  EXPECT_EQ(timeline.actions().size(), 1U);
}

TEST(WarmRestarts, WithoutInitLrTheyBeginAtTheOptimizersRate) {
  const Timeline timeline =
      compiled(recipe_of({"!LearningRateModifier {start_epoch: 0, end_epoch: 4, lr_class: "
                          "CosineAnnealingWarmRestarts, lr_kwargs: {lr_min: 0, cycle_steps: 10}}"}),
               5, 0.5);
  expect_rates(timeline, {{0, 0.5}, {5, 0.25}, {10, 0.5}});
}

TEST(RateFunction, ItsFormulaIsPartOfTheDigest) {
  const auto digest = [](const std::string& more) {
    return compiled(recipe_of({function("init_lr: 0.3, " + more)}), 10).digest();
  };
  const std::string first = digest("lr_func: linear, final_lr: 0.1");
  EXPECT_EQ(first, digest("lr_func: linear, final_lr: 0.10"));
  EXPECT_NE(first, digest("lr_func: linear, final_lr: 0.11"));
  EXPECT_NE(first, digest("lr_func: cosine, final_lr: 0.1"));
  EXPECT_NE(first, digest("lr_func: cyclic_linear, final_lr: 0.1"));
}

TEST(RateFunction, WhatItRefuses) {
  const auto faults = [](const std::string& more) {
    return faults_of(recipe_of({function(more)}));
  };
  EXPECT_THAT(faults("lr_func: linaer, init_lr: 0.1, final_lr: 0"),
              HasSubstr("'LearningRateFunctionModifier.lr_func' must be one of linear, cosine, "
                        "cyclic_linear, not 'linaer' (did you mean 'linear'?)"));
  EXPECT_THAT(faults("lr_func: linear, init_lr: -0.1, final_lr: 0"), HasSubstr("must be >= 0"));
  EXPECT_THAT(faults("lr_func: linear, init_lr: 1, final_lr: 0, update_frequency: 1"),
              HasSubstr("'LearningRateFunctionModifier.update_frequency' may only be -1"));
  EXPECT_EQ(faults("lr_func: linear, init_lr: 1, final_lr: 0, update_frequency: -1"), "");
  EXPECT_THAT(
      compiled(recipe_of({function("lr_func: linear, init_lr: 0.1, final_lr: 0, cycle_epochs: 1")}),
               10)
          .warnings(),
      ElementsAre("r.yaml:3: LearningRateFunctionModifier: cycle_epochs has no effect with "
                  "lr_func linear"));
}

}  // namespace lr_schedule_test
}  // namespace lockstep::recal
