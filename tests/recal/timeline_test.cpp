// The golden traces T1 to T8 of the recipe grammar: expected values are written out, not computed
// by the code under test.
#include <cmath>

#include <gmock/gmock.h>

#include "recal/gradual_ks.h"
#include "recipes.h"

namespace lockstep::recal {
namespace {

using ::testing::ElementsAre;

std::string pruning(const std::string& more) {
  return "!GradualKSModifier {params: __ALL__, init_sparsity: 0.05, final_sparsity: 0.8, " + more +
         "}";
}
std::string rate(const std::string& more) {
  return "!LearningRateModifier {start_epoch: 0, " + more + "}";
}

void expect_sparsities(const Timeline& timeline,
                       const std::vector<std::pair<double, double>>& epoch_and_sparsity) {
  for (const auto& [epoch, sparsity] : epoch_and_sparsity) {
    const auto step = std::llround(epoch * static_cast<double>(timeline.steps_per_epoch()));
    EXPECT_NEAR(timeline.target_sparsity_at(step), sparsity, 1e-6) << "epoch " << epoch;
  }
}

void expect_rates(const Timeline& timeline,
                  const std::vector<std::pair<double, double>>& epoch_and_rate) {
  for (const auto& [epoch, expected] : epoch_and_rate) {
    const auto step = static_cast<int64_t>(
        std::ceil(epoch * static_cast<double>(timeline.steps_per_epoch()) - 1e-9));
    EXPECT_NEAR(timeline.learning_rate_at(step), expected, 1e-12) << "epoch " << epoch;
  }
}

TEST(GoldenTrace, T1GradualPruningFollowsTheChosenCurve) {
  const std::string window = "start_epoch: 0, end_epoch: 5, update_frequency: 1";
  const std::vector<std::pair<double, double>> linear{{0, 0.05}, {1, 0.20}, {2, 0.35},
                                                      {3, 0.50}, {4, 0.65}, {5, 0.80}};
  const std::vector<std::pair<double, double>> cubic{{0, 0.05},  {1, 0.416}, {2, 0.638},
                                                     {3, 0.752}, {4, 0.794}, {5, 0.80}};
  // 0.05 + 0.75 (1 - (1 - t)^(1/3))
  const std::vector<std::pair<double, double>> inverse{
      {0, 0.05}, {1, 0.103761}, {3, 0.247396}, {4, 0.361397}, {5, 0.80}};
  expect_sparsities(compiled(recipe_of({pruning(window + ", inter_func: linear")}), 10), linear);
  expect_sparsities(compiled(recipe_of({pruning(window + ", inter_func: cubic")}), 10), cubic);
  expect_sparsities(compiled(recipe_of({pruning(window)}), 7),
                    cubic);  // the default, whatever the steps per epoch
  expect_sparsities(compiled(recipe_of({pruning(window + ", inter_func: inverse_cubic")}), 10),
                    inverse);
}

TEST(GoldenTrace, T1UpdatesFallOncePerEpochAndOnceAtTheEnd) {
  const Timeline timeline =
      compiled(recipe_of({pruning("start_epoch: 0, end_epoch: 5, update_frequency: 1")}), 10);
  EXPECT_THAT(steps_of(timeline, ActionKind::kPrune), ElementsAre(0, 10, 20, 30, 40, 50));
  EXPECT_NEAR(timeline.target_sparsity_at(9), 0.05, 1e-12);
  EXPECT_NEAR(timeline.target_sparsity_at(49), 0.794, 1e-12);
  EXPECT_DOUBLE_EQ(timeline.target_sparsity_at(50), 0.8);
}

TEST(GoldenTrace, T2WholeFile) {
  const std::string window = "start_epoch: 5.0, end_epoch: 20.0, update_frequency: 1.0";
  const std::string range = "!EpochRangeModifier {start_epoch: 0.0, end_epoch: 25.0}";
  const Timeline cubic = compiled(recipe_of({range, pruning(window)}), 4);
  EXPECT_EQ(cubic.min_epochs(), 0);
  EXPECT_EQ(cubic.max_epochs(), 25);
  EXPECT_EQ(cubic.total_steps(), 100);
  EXPECT_THAT(steps_of(cubic, ActionKind::kPrune),
              ElementsAre(20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60, 64, 68, 72, 76, 80));
  EXPECT_DOUBLE_EQ(cubic.target_sparsity_at(19), 0);
  expect_sparsities(cubic, {{5, 0.05},
                            {6, 0.190222},
                            {10, 0.577778},
                            {15, 0.772222},
                            {19, 0.799778},
                            {20, 0.8},
                            {24, 0.8}});
  const Timeline linear = compiled(recipe_of({range, pruning(window + ", inter_func: linear")}), 4);
  expect_sparsities(linear, {{5, 0.05}, {6, 0.10}, {10, 0.30}, {19, 0.75}, {20, 0.8}});
  EXPECT_TRUE(steps_of(cubic, ActionKind::kRelease).empty());
  const Timeline released =
      compiled(recipe_of({range, pruning(window + ", leave_enabled: false")}), 4);
  EXPECT_THAT(steps_of(released, ActionKind::kRelease), ElementsAre(80));
}

TEST(GoldenTrace, T3MultiStep) {
  const Timeline timeline =
      compiled(recipe_of({rate("end_epoch: 25, lr_class: MultiStepLR, lr_kwargs: {'gamma': 0.9, "
                               "'milestones': [2.0, 5.5, 10.0]}, init_lr: 0.1")}),
               10, 7.0);
  expect_rates(timeline, {{0, 0.1},
                          {1.9, 0.1},
                          {2, 0.09},
                          {5.4, 0.09},
                          {5.5, 0.081},
                          {9.9, 0.081},
                          {10, 0.0729},
                          {25, 0.0729},
                          {99, 0.0729}});
}

TEST(GoldenTrace, T4Step) {
  const Timeline timeline = compiled(
      recipe_of({rate("end_epoch: 10, lr_class: StepLR, lr_kwargs: {'gamma': 0.9, step: 2.0}")}),
      10, 0.1);
  expect_rates(timeline, {{0, 0.1},
                          {1.9, 0.1},
                          {2, 0.09},
                          {4, 0.081},
                          {6, 0.0729},
                          {8, 0.06561},
                          {10, 0.06561},
                          {20, 0.06561}});
  EXPECT_THAT(steps_of(timeline, ActionKind::kSetLearningRate), ElementsAre(0, 20, 40, 60, 80));
}

TEST(GoldenTrace, T5ExponentialIsStepwisePerWholeEpoch) {
  const Timeline timeline = compiled(
      recipe_of({rate("end_epoch: 5, lr_class: ExponentialLR, lr_kwargs: {'gamma': 0.9}")}), 10,
      0.1);
  expect_rates(timeline, {{0, 0.1},
                          {0.9, 0.1},
                          {1, 0.09},
                          {2, 0.081},
                          {3, 0.0729},
                          {4, 0.06561},
                          {4.9, 0.06561},
                          {5, 0.06561}});
}

TEST(GoldenTrace, T5PeriodsCountFromTheStart) {
  const Timeline timeline =
      compiled(recipe_of({"!LearningRateModifier {start_epoch: 1.5, end_epoch: 4, lr_class: "
                          "ExponentialLR, lr_kwargs: {gamma: 0.5}, init_lr: 0.8}"}),
               10, 0.1);
  EXPECT_THAT(steps_of(timeline, ActionKind::kSetLearningRate), ElementsAre(15, 25, 35));
  expect_rates(timeline, {{0, 0.1}, {1.4, 0.1}, {1.5, 0.8}, {2.5, 0.4}, {3.5, 0.2}, {9, 0.2}});
}

TEST(GoldenTrace, T6Steps) {
  const auto updates = [](const std::string& window, int64_t steps_per_epoch) {
    return steps_of(compiled(recipe_of({pruning(window)}), steps_per_epoch), ActionKind::kPrune);
  };
  EXPECT_THAT(updates("start_epoch: 2.5, end_epoch: 3.5, update_frequency: 1", 10),
              ElementsAre(25, 35));
  EXPECT_THAT(updates("start_epoch: 0, end_epoch: 2, update_frequency: 0.5", 10),
              ElementsAre(0, 5, 10, 15, 20));
  EXPECT_THAT(updates("start_epoch: 0, end_epoch: 2.2, update_frequency: 0.5", 7),
              ElementsAre(0, 4, 7, 11, 14, 16));
  EXPECT_THAT(updates("start_epoch: 0, end_epoch: 2.1, update_frequency: 0.3", 10),
              ElementsAre(0, 3, 6, 9, 12, 15, 18, 21));
  EXPECT_THAT(updates("start_epoch: 1.1, end_epoch: 2.2, update_frequency: 1", 100),
              ElementsAre(110, 210, 220));
}

TEST(GoldenTrace, T6APeriodShorterThanAStepActsOncePerStep) {
  const Timeline timeline = compiled(
      recipe_of({pruning(
          "start_epoch: 0, end_epoch: 1, update_frequency: 0.000001, inter_func: linear")}),
      4);
  EXPECT_THAT(steps_of(timeline, ActionKind::kPrune), ElementsAre(0, 1, 2, 3, 4));
  // The last update at or before the step counts: at step 2 epoch 0.5 is reached.
  EXPECT_NEAR(timeline.target_sparsity_at(2), 0.05 + 0.75 * 0.5, 1e-6);
}

TEST(GoldenTrace, T7TheRunEndsWhereItsStepsPerEpochSay) {
  const std::string text = recipe_of({"!EpochRangeModifier {start_epoch: 0, end_epoch: 25}"});
  EXPECT_EQ(compiled(text, 54).total_steps(), 1350);
  EXPECT_EQ(compiled(text, 53).total_steps(), 1325);
  EXPECT_EQ(compiled(text, 59).total_steps(), 1475);
}

TEST(GoldenTrace, T8ALaterEndWidensTheRun) {
  const Timeline timeline =
      compiled(recipe_of({"!EpochRangeModifier {start_epoch: 1, end_epoch: 25}",
                          pruning("start_epoch: 0, end_epoch: 30, update_frequency: 1")}),
               10);
  EXPECT_EQ(timeline.max_epochs(), 30);
  EXPECT_EQ(timeline.total_steps(), 300);
  EXPECT_EQ(timeline.min_epochs(), 0);
  EXPECT_THAT(timeline.notes(), ElementsAre("r.yaml:4: GradualKSModifier widens the run: it ends "
                                            "at epoch 30, EpochRangeModifier at 25",
                                            "r.yaml:4: GradualKSModifier widens the run: it starts "
                                            "at epoch 0, EpochRangeModifier at 1"));
}

TEST(Timeline, ADecimalEndStopsAtItsExactStep) {
  const Timeline timeline =
      compiled(recipe_of({"!EpochRangeModifier {start_epoch: 0.5, end_epoch: 8.3}"}), 100);
  EXPECT_EQ(timeline.max_epochs(), 9);
  EXPECT_EQ(timeline.total_steps(), 830);  // in binary, 8.3 x 100 rounds up to 831
  EXPECT_EQ(timeline.min_epochs(), 0);
}

TEST(Timeline, WithoutAnEndTheRecipeDoesNotSayHowLong) {
  const Timeline timeline =
      compiled(recipe_of({"!SetLearningRateModifier {start_epoch: 5.0, learning_rate: 0.3}"}), 10);
  EXPECT_EQ(timeline.max_epochs(), std::nullopt);
  EXPECT_EQ(timeline.total_steps(), std::nullopt);
  expect_rates(timeline, {{0, 0.1}, {4.9, 0.1}, {5, 0.3}, {50, 0.3}});
  EXPECT_TRUE(timeline.sets_learning_rate());
}

TEST(Timeline, RatesFollowOneAnother) {
  const Timeline timeline =
      compiled(recipe_of({"!LearningRateModifier {start_epoch: 0, end_epoch: 2, lr_class: "
                          "ExponentialLR, lr_kwargs: {gamma: 0.5}}",
                          "!SetLearningRateModifier {start_epoch: 2, learning_rate: 0.7}"}),
               10);
  expect_rates(timeline, {{0, 0.1}, {1, 0.05}, {1.9, 0.05}, {2, 0.7}});
}

TEST(Timeline, AnEmptyRecipeChangesNothing) {
  Faults faults;
  const Timeline timeline =
      Timeline::compile(Recipe(), {.steps_per_epoch = 3, .base_learning_rate = 0.2}, &faults);
  EXPECT_TRUE(faults.empty());
  EXPECT_TRUE(timeline.actions().empty());
  EXPECT_DOUBLE_EQ(timeline.learning_rate_at(100), 0.2);
  EXPECT_DOUBLE_EQ(timeline.target_sparsity_at(100), 0);
  EXPECT_FALSE(timeline.sets_learning_rate());
}

TEST(Timeline, TargetsOfSeveralModifiersAreWeightedBySize) {
  const std::string window =
      "init_sparsity: 0.5, final_sparsity: 0.5, start_epoch: 0, end_epoch: 1, update_frequency: 1}";
  const Timeline timeline = compiled(
      recipe_of({"!GradualKSModifier {params: [head], " + window,
                 "!GradualKSModifier {params: [blocks.0.conv], init_sparsity: 0, final_sparsity: "
                 "0.9, start_epoch: 0, end_epoch: 2, update_frequency: 2}"}),
      10);
  EXPECT_NEAR(timeline.target_sparsity_at(0), 0.5 * 40 / 112, 1e-12);
  EXPECT_NEAR(timeline.target_sparsity_at(20), (0.5 * 40 + 0.9 * 72) / 112, 1e-12);
  EXPECT_EQ(timeline.target_sparsity_at(20, 1), 0.9);
}

TEST(Timeline, AConstantModifierBehindAGradualOneTakesOverAtItsEnd) {
  const Timeline timeline = compiled(
      recipe_of({"!GradualKSModifier {params: [head], init_sparsity: 0.1, final_sparsity: 0.5, "
                 "start_epoch: 0, end_epoch: 3, update_frequency: 1, leave_enabled: false}",
                 "!ConstantKSModifier {params: __ALL__}"}),
      10);
  EXPECT_THAT(steps_of(timeline, ActionKind::kKeepZeros), ElementsAre(0, 30));
  const std::vector<Action>& actions = timeline.actions();
  EXPECT_EQ(actions.back().kind, ActionKind::kKeepZeros);  // after the release of the same step
  EXPECT_THAT(timeline.param_sets()[static_cast<size_t>(actions.back().param_set)].names,
              ElementsAre("head.weight"));
}

TEST(Timeline, DigestsDifferWhereSchedulesDo) {
  const auto digest = [](const std::string& sparsity, int64_t steps_per_epoch,
                         double learning_rate) {
    const std::string item =
        "!GradualKSModifier {params: [head], init_sparsity: 0.1, final_sparsity: " + sparsity +
        ", start_epoch: 0, end_epoch: 3, update_frequency: 1}";
    return compiled(recipe_of({item}), steps_per_epoch, learning_rate).digest();
  };
  const std::string first = digest("0.5", 10, 0.1);
  EXPECT_EQ(first.size(), 64U);
  EXPECT_EQ(first, digest("0.50", 10, 0.1));
  EXPECT_NE(first, digest("0.500001", 10, 0.1));
  EXPECT_NE(first, digest("0.5", 11, 0.1));
  EXPECT_NE(first, digest("0.5", 10, 0.2));
}

TEST(Timeline, LooksUpWhatIsDue) {
  const Timeline timeline = compiled(
      recipe_of(
          {pruning("start_epoch: 0, end_epoch: 1, update_frequency: 0.5, leave_enabled: false"),
           "!SetLearningRateModifier {start_epoch: 1, learning_rate: 0.5}"}),
      10);
  EXPECT_TRUE(timeline.due_at(1).empty());
  std::vector<ActionKind> kinds;
  for (const Action& action : timeline.due_at(10)) kinds.push_back(action.kind);
  EXPECT_THAT(kinds,
              ElementsAre(ActionKind::kPrune, ActionKind::kRelease, ActionKind::kSetLearningRate));
}

}  // namespace
}  // namespace lockstep::recal
