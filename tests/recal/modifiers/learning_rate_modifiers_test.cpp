// Timeline of modifiers of the learning rate.
#include <gmock/gmock.h>

#include "tests/recal/modifiers/timeline_events.h"

namespace lockstep::recal {
namespace learning_rate_modifiers_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tests::events;

TEST(LearningRates, ByGroup) {
  const Timeline timeline = compiled(
      recipe_of({"!SetLearningRateModifier {start_epoch: 1, learning_rate: 0.5, param_groups: [1]}",
                 "!SetLearningRateModifier {start_epoch: 1, learning_rate: 0.3, param_groups: [0], "
                 "constant_logging: true}",
                 "!SetLearningRateModifier {start_epoch: 2, learning_rate: 0.2, param_groups: [0, "
                 "1]}"}),
      10, 0.1);
  for (const int group : {kWeightGroup, kOtherGroup})
    EXPECT_EQ(timeline.learning_rate_at(9, group), 0.1);
  EXPECT_EQ(timeline.learning_rate_at(10), 0.3);
  EXPECT_EQ(timeline.learning_rate_at(10, kOtherGroup), 0.5);
  EXPECT_EQ(timeline.learning_rate_at(20, kOtherGroup), 0.2);
  EXPECT_THAT(events(timeline),
              ElementsAre("10 learning rate 0.5 of parameter group 1",
                          "10 learning rate 0.3 of parameter group 0", "20 learning rate 0.2"));
}

TEST(LearningRates, GroupsThatThereAre) {
  const auto faults = [](const std::string& groups) {
    return faults_of(
        recipe_of({"!SetLearningRateModifier {start_epoch: 1, learning_rate: 0.5, "
                   "param_groups: " +
                   groups + "}"}));
  };
  const std::string known =
      "available: 0 (weights, which decay) and 1 (the rest: biases, normalisation)";
  EXPECT_THAT(faults("[-1]"), HasSubstr("'SetLearningRateModifier.param_groups' is -1"));
  EXPECT_THAT(faults("[]"), HasSubstr("must name a group; " + known));
  EXPECT_EQ(compile_faults({"!SetLearningRateModifier {start_epoch: 1, learning_rate: 0.5, "
                            "param_groups: [0, 2]}"}),
            "3:5: SetLearningRateModifier names parameter group 2; " + known);
  EXPECT_THAT(faults("0"), HasSubstr("must be a list of whole numbers"));
}

TEST(LearningRates, GroupsOfABareRecipeAreOnlyNoted) {
  const auto item = [](const std::string& groups, const std::string& first) {
    return "!LearningRateFunctionModifier {start_epoch: 0, end_epoch: 3, lr_func: linear, "
           "init_lr: " +
           first + ", final_lr: 0.01, param_groups: " + groups + "}";
  };
  Diagnostics faults;
  const Timeline timeline =
      Timeline::compile(good_recipe(recipe_of({item("[0, 1]", "0"), item("[2]", "0.05")})),
                        {.steps_per_epoch = 10, .base_learning_rate = 0.1}, &faults);
  EXPECT_TRUE(faults.empty()) << faults.text();
  EXPECT_THAT(
      timeline.notes(),
      ElementsAre("r.yaml:4: LearningRateFunctionModifier: parameter group 2 is not checked "
                  "without a model; a run has 0 (weights, which decay) and 1 (the rest: "
                  "biases, normalisation)"));
  EXPECT_EQ(timeline.learning_rate_at(0, kWeightGroup), 0.0);
  EXPECT_EQ(timeline.learning_rate_at(0, kOtherGroup), 0.0);
  EXPECT_NE(compile_faults({item("[0, 1]", "0"), item("[1]", "0.05")}), "");
}

TEST(LearningRates, WithoutAFirstRateTheOneInForceGoesOn) {
  const std::string steps =
      "!LearningRateModifier {start_epoch: 2, end_epoch: 5, lr_class: StepLR, lr_kwargs: {gamma: "
      "0.5, step_size: 1}";
  const std::string set = "!SetLearningRateModifier {start_epoch: 0, learning_rate: 0.8";
  const auto rates = [](const std::vector<std::string>& items) {
    const Timeline timeline = compiled(recipe_of(items), 10, 0.1);
    return std::vector<double>{timeline.learning_rate_at(20, kWeightGroup),
                               timeline.learning_rate_at(45, kWeightGroup),
                               timeline.learning_rate_at(45, kOtherGroup)};
  };
  EXPECT_THAT(rates({steps + "}"}), ElementsAre(0.1, 0.025, 0.025));
  EXPECT_THAT(rates({set + "}", steps + "}"}), ElementsAre(0.8, 0.2, 0.2));
  EXPECT_THAT(rates({steps + "}", set + "}"}), ElementsAre(0.8, 0.2, 0.2));  // whatever the order
  EXPECT_THAT(rates({set + ", param_groups: [1]}", steps + "}"}), ElementsAre(0.1, 0.025, 0.2));
  // The end of a schedule, and one schedule after another.
  EXPECT_THAT(
      rates({"!LearningRateFunctionModifier {start_epoch: 0, end_epoch: 2, lr_func: linear, "
             "init_lr: 0, final_lr: 0.4}",
             steps + "}"}),
      ElementsAre(0.4, 0.1, 0.1));
  EXPECT_THAT(rates({"!LearningRateModifier {start_epoch: 5, lr_class: ExponentialLR, lr_kwargs: "
                     "{gamma: 0.5}}",
                     set + "}", steps + "}", "!EpochRangeModifier {start_epoch: 0, end_epoch: 9}"}),
              ElementsAre(0.8, 0.2, 0.2));
  EXPECT_EQ(compiled(recipe_of({"!LearningRateModifier {start_epoch: 5, end_epoch: 9, lr_class: "
                                "ExponentialLR, lr_kwargs: {gamma: 0.5}}",
                                set + "}", steps + "}"}),
                     10, 0.1)
                .learning_rate_at(60),
            0.1);  // 0.2 from epoch 4 on, halved at epoch 6
}

TEST(LearningRates, StepSizeIsAnotherNameOfStep) {
  const auto rates = [](const std::string& kwargs) {
    return compiled(recipe_of({"!LearningRateModifier {start_epoch: 0, end_epoch: 5, lr_class: "
                               "StepLR, lr_kwargs: {gamma: 0.5, " +
                               kwargs + "}}"}),
                    10)
        .digest();
  };
  EXPECT_EQ(rates("step: 2"), rates("step_size: 2.0"));
  EXPECT_THAT(faults_of(recipe_of({"!LearningRateModifier {start_epoch: 0, end_epoch: 5, lr_class: "
                                   "StepLR, lr_kwargs: {gamma: 0.5, step: 1, step_size: 1}}"})),
              HasSubstr("'LearningRateModifier.lr_kwargs.step' and 'step_size' are both given"));
}

TEST(LearningRates, MilestonesInAWindowOfSteps) {
  const auto item = [](const std::string& window) {
    return "!LearningRateModifier {" + window +
           ", lr_class: MultiStepLR, lr_kwargs: {gamma: 0.5, milestones: [1, 2]}}";
  };
  EXPECT_THAT(steps_of(compiled(recipe_of({item("start_step: 5, end_step: 30")}), 10),
                       ActionKind::kSetLearningRate),
              ElementsAre(5, 10, 20));
  EXPECT_EQ(compile_faults({item("start_step: 11, end_step: 30")}),
            "3:5: LearningRateModifier has a milestone at epoch 1 (step 10), outside its steps 11 "
            "to 30");
  EXPECT_THAT(compile_faults({item("start_step: 5, end_step: 15")}),
              HasSubstr("has a milestone at epoch 2 (step 20)"));
}

}  // namespace learning_rate_modifiers_test
}  // namespace lockstep::recal
