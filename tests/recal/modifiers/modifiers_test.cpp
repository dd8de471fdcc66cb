// Common properties of modifiers, and the timeline of modifiers of values and of the weight decay.
#include <gmock/gmock.h>

#include "tests/recal/modifiers/timeline_events.h"

namespace lockstep::recal {
namespace modifiers_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tests::events;

TEST(Defaults, OfTheSuccessorAreTakenAndToldOnce) {
  const Timeline timeline = compiled(
      recipe_of({"!EpochRangeModifier {start_epoch: 0, end_epoch: 6}",
                 "!LearningRateModifier {start_epoch: 2, lr_class: ExponentialLR, lr_kwargs: "
                 "{gamma: 0.5}, init_lr: 0.4}",
                 "!SetLearningRateModifier {learning_rate: 0.0}",
                 "!SetWeightDecayModifier {weight_decay: 0.1}",
                 "!SetWeightDecayModifier {weight_decay: 0.2, param_groups: [1]}",
                 "!SetParamModifier {params: [head.bias], val: 1}"}),
      10);
  EXPECT_THAT(
      timeline.notes(),
      ElementsAre(
          "r.yaml:4: LearningRateModifier: no end_epoch is given: using -1, the run's end",
          "r.yaml:5: SetLearningRateModifier: no start_epoch is given: using -1, the run's start",
          "r.yaml:6: SetWeightDecayModifier: no start_epoch is given: using -1, the run's start",
          "r.yaml:8: SetParamModifier: no start_epoch is given: using -1, the run's start"));
  EXPECT_EQ(timeline.modifiers()[1].end_step, 60);
  EXPECT_EQ(timeline.learning_rate_at(0), 0.0);
  EXPECT_EQ(timeline.learning_rate_at(59), 0.4 * 0.125);
  EXPECT_EQ(timeline.weight_decay_at(0, kOtherGroup), 0.2);
}

TEST(WeightDecay, IsSetForWeightsUnlessAsked) {
  const Timeline timeline =
      compiled(recipe_of({"!SetWeightDecayModifier {start_epoch: 1, weight_decay: 0.01}",
                          "!SetWeightDecayModifier {start_step: 20, weight_decay: 0.0, "
                          "param_groups: [0, 1]}"}),
               10);
  EXPECT_EQ(timeline.weight_decay_at(9, kWeightGroup), std::nullopt);
  EXPECT_EQ(timeline.weight_decay_at(10, kWeightGroup), 0.01);
  EXPECT_EQ(timeline.weight_decay_at(19, kOtherGroup), std::nullopt);
  EXPECT_EQ(timeline.weight_decay_at(20, kOtherGroup), 0.0);
  EXPECT_FALSE(timeline.sets_learning_rate());
  EXPECT_THAT(
      faults_of(recipe_of({"!SetWeightDecayModifier {start_epoch: 1, weight_decay: -0.1}"})),
      HasSubstr("'SetWeightDecayModifier.weight_decay' is -0.1, it must be >= 0"));
}

TEST(ParamValues, AreSetOnceOrStepByStep) {
  EXPECT_THAT(events({"!SetParamModifier {params: [head.bias], val: -0.5, start_epoch: 1.5}"}),
              ElementsAre("15 set head.bias to -0.5"));
  EXPECT_THAT(events({"!SetParamModifier {params: head, val: 1, start_epoch: -1}"}),
              ElementsAre("0 set 2 parameters to 1"));
  EXPECT_THAT(
      events({"!GradualParamModifier {params: [head.bias], init_val: 1, final_val: 0, start_epoch: "
              "0, end_epoch: 2, update_frequency: 0.5}"}),
      ElementsAre("0 set head.bias to 1", "5 set head.bias to 0.75", "10 set head.bias to 0.5",
                  "15 set head.bias to 0.25", "20 set head.bias to 0"));
  EXPECT_THAT(
      events({"!GradualParamModifier {params: [head.bias], init_val: 0, final_val: 8, start_epoch: "
              "0, end_epoch: 2, update_frequency: 1, inter_func: cubic}"}),
      ElementsAre("0 set head.bias to 0", "10 set head.bias to 7", "20 set head.bias to 8"));
}

TEST(ParamValues, AreWhatFloat32Holds) {
  for (const std::string item :
       {"!SetParamModifier {params: [head], start_epoch: 0, val: ",
        "!GradualParamModifier {params: [head], start_epoch: 0, end_epoch: 1, update_frequency: 1, "
        "init_val: 0, final_val: "}) {
    EXPECT_EQ(faults_of(recipe_of({item + "3.4e38}"})), "");
    for (const char* value : {"1e39", "-1e39"})
      EXPECT_THAT(faults_of(recipe_of({item + value + "}"})), HasSubstr("it must be >= -3.402823"));
  }
}

TEST(NewerNames, OfKeysAreRead) {
  EXPECT_EQ(events({"!ConstantPruningModifier {targets: [head], start: 1, end: 2.5}"}),
            events({"!ConstantPruningModifier {params: [head], start_epoch: 1, end_epoch: 2.5}"}));
  EXPECT_THAT(faults_of(recipe_of({"!ConstantKSModifier {targets: [head], params: [head]}"})),
              HasSubstr("'ConstantKSModifier.params' and 'targets' are both given"));
  EXPECT_THAT(faults_of(recipe_of({"!EpochRangeModifier {start: 0, start_epoch: 1, end: 3}"})),
              HasSubstr("'EpochRangeModifier.start' and 'start_epoch' are both given"));
  EXPECT_THAT(faults_of(recipe_of({"!EpochRangeModifier {start: 3, end: 2}"})),
              HasSubstr("it must be greater than start_epoch (3)"));
  EXPECT_THAT(faults_of(recipe_of({"!EpochRangeModifier {start: 0, end: 3, end_step: 5}"})),
              HasSubstr("are both given"));
}

TEST(KeysThatSayWhatHoldsAnyway, MayOnlyBeMinusOne) {
  for (const std::string item :
       {"!SetLearningRateModifier {learning_rate: 1, start_epoch: 1, end_epoch: ",
        "!SetWeightDecayModifier {weight_decay: 0, start_epoch: 1, end_epoch: ",
        "!SetParamModifier {params: [head], val: 0, start_epoch: 1, end_step: ",
        "!ConstantKSModifier {params: [head], update_frequency: "}) {
    EXPECT_EQ(faults_of(recipe_of({item + "-1}"})), "");
    EXPECT_THAT(faults_of(recipe_of({item + "5}"})), HasSubstr("may only be -1: "));
  }
}

TEST(OneStep, ActsInOneOrderWhateverTheRecipes) {
  const std::vector<std::string> items{
      "!ConstantKSModifier {params: [head], start_epoch: 1}",
      "!TrainableParamsModifier {params: [blocks.0.conv.bias], trainable: false, start_epoch: 1}",
      "!ConstantKSModifier {params: [blocks.0.conv], end_epoch: 1}",
      "!SetParamModifier {params: [head.weight], val: 0, start_epoch: 1}",
      "!SetWeightDecayModifier {weight_decay: 0, start_epoch: 1}",
      "!SetLearningRateModifier {learning_rate: 1, start_epoch: 1}"};
  const std::vector<std::string> expected{"0 keep the zeros of blocks.0.conv.weight",
                                          "10 learning rate 1",
                                          "10 weight decay 0 of parameter group 0",
                                          "10 set head.weight to 0",
                                          "10 release the masks of blocks.0.conv.weight",
                                          "10 keep the zeros of head.weight",
                                          "10 freeze blocks.0.conv.bias"};
  EXPECT_EQ(events(items), expected);
  EXPECT_EQ(events(std::vector<std::string>(items.rbegin(), items.rend())), expected);
}

}  // namespace modifiers_test
}  // namespace lockstep::recal
