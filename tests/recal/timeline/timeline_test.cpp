// Timeline of a recipe; the traces of the recipe grammar are in golden_traces_test.cpp.
#include <cmath>

#include <gmock/gmock.h>

#include "tests/recal/recipes.h"

namespace lockstep::recal {
namespace timeline_test {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string pruning(const std::string& more) {
  return "!GradualKSModifier {params: __ALL__, init_sparsity: 0.05, final_sparsity: 0.8, " + more +
         "}";
}
void expect_rates(const Timeline& timeline,
                  const std::vector<std::pair<double, double>>& epoch_and_rate) {
  for (const auto& [epoch, expected] : epoch_and_rate) {
    const auto step = static_cast<int64_t>(
        std::ceil(epoch * static_cast<double>(timeline.steps_per_epoch()) - 1e-9));
    EXPECT_NEAR(timeline.learning_rate_at(step), expected, 1e-12) << "epoch " << epoch;
  }
}

TEST(Timeline, PeriodsCountFromTheStart) {
  const Timeline timeline =
      compiled(recipe_of({"!LearningRateModifier {start_epoch: 1.5, end_epoch: 4, lr_class: "
                          "ExponentialLR, lr_kwargs: {gamma: 0.5}, init_lr: 0.8}"}),
               10, 0.1);
  EXPECT_THAT(steps_of(timeline, ActionKind::kSetLearningRate), ElementsAre(15, 25, 35));
  expect_rates(timeline, {{0, 0.1}, {1.4, 0.1}, {1.5, 0.8}, {2.5, 0.4}, {3.5, 0.2}, {9, 0.2}});
}

TEST(Timeline, APeriodShorterThanAStepActsOncePerStep) {
  const Timeline timeline = compiled(
      recipe_of({pruning(
          "start_epoch: 0, end_epoch: 1, update_frequency: 0.000001, inter_func: linear")}),
      4);
  EXPECT_THAT(steps_of(timeline, ActionKind::kPrune), ElementsAre(0, 1, 2, 3, 4));
  // The last update at or before the step counts: at step 2 epoch 0.5 is reached.
  EXPECT_NEAR(timeline.target_sparsity_at(2), 0.05 + 0.75 * 0.5, 1e-6);
}

TEST(Timeline, ALaterEndLengthensTheRun) {
  const Timeline timeline = compiled(
      recipe_of({"!EpochRangeModifier {start_epoch: 0, end_epoch: 25}",
                 "!GradualKSModifier {params: [head], init_sparsity: 0.05, final_sparsity: "
                 "0.8, start_epoch: 0, end_epoch: 30, update_frequency: 1}"}),
      10);
  EXPECT_EQ(timeline.max_epochs(), 30);
  EXPECT_EQ(timeline.total_steps(), 300);
  EXPECT_EQ(timeline.min_epochs(), 0);
  EXPECT_THAT(timeline.notes(),
              ElementsAre("r.yaml:4: GradualKSModifier lengthens the run: it ends at epoch 30, "
                          "EpochRangeModifier ends at 25"));
}

TEST(Timeline, AStartBehindTheRangeLengthensTheRunToItsEpoch) {
  const std::string range = "!EpochRangeModifier {start_epoch: 0, end_epoch: 5}";
  const auto steps = [&](const std::string& item) {
    return compiled(recipe_of({range, item}), 10).total_steps();
  };
  EXPECT_EQ(steps("!SetLearningRateModifier {start_epoch: 9, learning_rate: 0.1}"), 90);
  EXPECT_EQ(steps("!SetLearningRateModifier {start_epoch: 8.3, learning_rate: 0.1}"), 90);
  EXPECT_EQ(steps("!SetWeightDecayModifier {start_step: 71, weight_decay: 0.1}"), 80);
  EXPECT_EQ(steps("!SetLearningRateModifier {start_epoch: 4.5, learning_rate: 0.1}"), 50);
  EXPECT_THAT(
      compiled(recipe_of({range, "!SetLearningRateModifier {start_epoch: 8.3, learning_rate: 1}"}),
               10)
          .notes(),
      ElementsAre("r.yaml:4: SetLearningRateModifier lengthens the run: it starts at epoch 8.3, "
                  "EpochRangeModifier ends at 5"));
}

TEST(Timeline, AStartBeforeADecimalEndLeavesTheEndExact) {
  const auto with = [&](const std::string& item) {
    return compiled(recipe_of({"!EpochRangeModifier {start_epoch: 0, end_epoch: 2.5}", item}), 10);
  };
  for (const char* item : {"!SetLearningRateModifier {start_epoch: 2.2, learning_rate: 0.1}",
                           "!SetWeightDecayModifier {start_step: 22, weight_decay: 0.1}",
                           "!TrainableParamsModifier {params: __ALL__, trainable: true, "
                           "start_epoch: 2.4}",
                           "!ConstantKSModifier {params: __ALL__, start_epoch: 2.1}"}) {
    EXPECT_EQ(with(item).total_steps(), 25) << item;
    EXPECT_THAT(with(item).notes(), Not(Contains(HasSubstr("lengthens")))) << item;
  }
  const Timeline at_the_end = with("!SetWeightDecayModifier {start_step: 25, weight_decay: 0.1}");
  EXPECT_EQ(at_the_end.total_steps(), 30);
  EXPECT_THAT(at_the_end.notes(),
              ElementsAre("r.yaml:4: SetWeightDecayModifier lengthens the run: it starts at step "
                          "25, EpochRangeModifier ends at 2.5"));
}

TEST(Timeline, AStartAfterTheEndOfAnyModifierIsNamed) {
  const Timeline timeline =
      compiled(recipe_of({pruning("start_epoch: 0, end_epoch: 2.5, update_frequency: 1"),
                          "!SetLearningRateModifier {start_epoch: 4, learning_rate: 0.1}",
                          "!SetLearningRateModifier {start_epoch: 2.2, learning_rate: 0.2}"}),
               10);
  EXPECT_EQ(timeline.total_steps(), 40);
  EXPECT_THAT(timeline.notes(),
              Contains("r.yaml:4: SetLearningRateModifier lengthens the run: it starts at epoch "
                       "4, GradualKSModifier ends at 2.5"));
}

TEST(Timeline, TheStartOfTheRangeChangesNothing) {
  const auto of_start = [](const std::string& start) {
    return compiled(recipe_of({"!EpochRangeModifier {start_epoch: " + start + ", end_epoch: 25}",
                               "!SetLearningRateModifier {start_epoch: 1, learning_rate: 0.5}"}),
                    10);
  };
  EXPECT_EQ(of_start("3").digest(), of_start("0").digest());
  EXPECT_EQ(of_start("3").actions().size(), 1U);  // the range is a bound, no action
  EXPECT_EQ(of_start("3").min_epochs(), 1);       // the smallest start of all modifiers
  EXPECT_THAT(of_start("0").notes(), ElementsAre());
  EXPECT_THAT(
      of_start("3").notes(),
      ElementsAre("r.yaml:3: EpochRangeModifier: its start at epoch 3 changes nothing: a run "
                  "begins at step 0"));
}

TEST(Timeline, TellsWhatAWordForAllSelects) {
  const Timeline timeline =
      compiled(recipe_of({pruning("start_epoch: 0, end_epoch: 3, update_frequency: 1"),
                          "!TrainableParamsModifier {params: __ALL__}"}),
               10);
  EXPECT_THAT(
      timeline.notes(),
      ElementsAre("r.yaml:3: GradualKSModifier: __ALL__ selects 3 of 6 parameters, the "
                  "weights of linear and convolution layers: blocks.0.conv.weight, "
                  "blocks.1.conv.weight, head.weight",
                  "r.yaml:4: TrainableParamsModifier: __ALL__ selects 6 of 6 parameters, "
                  "every one: blocks.0.conv.weight, blocks.0.conv.bias, blocks.1.conv.weight, "
                  "blocks.1.conv.bias, head.weight, head.bias"));
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
  Diagnostics faults;
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
  EXPECT_EQ(first, digest("0.5", 10, 0.2));  // nothing here builds on the optimizer's rate
  const auto with_rate = [](double learning_rate) {
    return compiled(recipe_of({"!SetLearningRateModifier {start_epoch: 1, learning_rate: 0.5}"}),
                    10, learning_rate)
        .digest();
  };
  EXPECT_NE(with_rate(0.1), with_rate(0.2));  // which holds until epoch 1
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
              ElementsAre(ActionKind::kSetLearningRate, ActionKind::kPrune, ActionKind::kRelease));
}

}  // namespace timeline_test
}  // namespace lockstep::recal
