// What each modifier becomes in the timeline.
#include <gmock/gmock.h>

#include "recal/timeline_text.h"
#include "recipes.h"

namespace lockstep::recal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// "step kind value: names" of each action.
std::vector<std::string> events(const Timeline& timeline) {
  std::vector<std::string> lines;
  for (const Action& action : timeline.actions())
    lines.push_back(std::to_string(action.step) + " " + describe(timeline, action));
  return lines;
}
std::vector<std::string> events(const std::vector<std::string>& items) {
  return events(compiled(recipe_of(items), 10));
}

std::string pruning(const std::string& more, const std::string& tag = "GradualKSModifier") {
  return "!" + tag +
         " {params: __ALL__, init_sparsity: 0.05, final_sparsity: 0.5, start_epoch: 0, end_epoch: "
         "3, update_frequency: 1" +
         (more.empty() ? "" : ", ") + more + "}";
}

TEST(GradualPruning, GoesByManyNames) {
  for (const std::string tag : {"GradualKSModifier", "GMPruningModifier",
                                "MagnitudePruningModifier", "GlobalMagnitudePruningModifier"}) {
    const Timeline timeline = compiled(recipe_of({pruning("", tag)}), 10);
    EXPECT_EQ(timeline.modifiers()[0].tag, tag);
    EXPECT_THAT(steps_of(timeline, ActionKind::kPrune), ElementsAre(0, 10, 20, 30));
    EXPECT_EQ(timeline.param_sets()[0].mask_rule.global, tag == "GlobalMagnitudePruningModifier");
    EXPECT_THAT(faults_of(recipe_of({pruning("wrong: 1", tag)})),
                HasSubstr("unknown key 'wrong' in '" + tag + "'"));
  }
}

TEST(GradualPruning, MaskTypes) {
  const auto kind = [](const std::string& text) {
    return compiled(recipe_of({pruning("mask_type: " + text)}), 10)
        .param_sets()[0]
        .mask_rule.kind.text();
  };
  EXPECT_EQ(compiled(recipe_of({pruning("")}), 10).param_sets()[0].mask_rule, MaskRule());
  EXPECT_EQ(kind("unstructured"), "unstructured");
  EXPECT_EQ(kind("block4"), "block4");
  EXPECT_EQ(kind("[1, 4]"), "block4");
  EXPECT_EQ(kind("'[1,4]'"), "block4");
  EXPECT_EQ(kind("2:4"), "2:4");
  EXPECT_EQ(kind("filter"), "filter");
  EXPECT_EQ(kind("channel"), "channel");
  for (const std::string bad : {"'4:2'", "[1, 8]", "blocks", "[]", "{a: 1}"})
    EXPECT_THAT(faults_of(recipe_of({pruning("mask_type: " + bad)})),
                HasSubstr("'GradualKSModifier.mask_type' must be unstructured, block4 (or [1, 4]), "
                          "N:M such as 2:4 with 0 < N < M <= 64, filter or channel, not '"));
}

TEST(GradualPruning, NOfMSetsALimit) {
  const auto faults = [](const std::string& final_sparsity) {
    return faults_of(
        recipe_of({"!GradualKSModifier {params: __ALL__, init_sparsity: 0.05, "
                   "final_sparsity: " +
                   final_sparsity +
                   ", start_epoch: 0, end_epoch: 3, update_frequency: 1, mask_type: "
                   "2:4}"}));
  };
  EXPECT_EQ(faults("0.5"), "");
  EXPECT_EQ(
      faults("0.51"),
      "3:79: 'GradualKSModifier.final_sparsity' is 0.51: mask_type 2:4 prunes 2 of 4 weights, "
      "which is at most 0.5");
}

TEST(GradualPruning, OtherKeys) {
  const auto set = [](const std::string& more) {
    return compiled(recipe_of({pruning(more)}), 10).param_sets()[0];
  };
  EXPECT_FALSE(set("").momentum_buffer_reset);
  EXPECT_TRUE(set("momentum_buffer_reset: true").momentum_buffer_reset);
  EXPECT_TRUE(set("global_sparsity: true").mask_rule.global);
  EXPECT_EQ(faults_of(recipe_of({pruning("score_type: magnitude")})), "");
  EXPECT_THAT(faults_of(recipe_of({pruning("score_type: movement")})),
              HasSubstr("'GradualKSModifier.score_type' must be one of magnitude, not 'movement'"));
  EXPECT_THAT(
      faults_of(recipe_of({pruning("global_sparsity: false", "GlobalMagnitudePruningModifier")})),
      HasSubstr("'GlobalMagnitudePruningModifier.global_sparsity' is false"));
}

TEST(GradualPruning, LogTypesAskForSummariesOfEachParameter) {
  const auto logs = [](const std::string& more) {
    const Timeline timeline = compiled(recipe_of({pruning(more)}), 10);
    EXPECT_EQ(timeline.modifiers()[0].logs_params, timeline.logs_param(4));
    EXPECT_FALSE(timeline.logs_param(1));  // a bias is not pruned
    return timeline.logs_param(0);
  };
  EXPECT_FALSE(logs(""));
  EXPECT_FALSE(logs("log_types: none"));
  EXPECT_FALSE(logs("log_types: []"));
  EXPECT_FALSE(logs("log_types: ~"));
  EXPECT_TRUE(logs("log_types: __ALL__"));
  EXPECT_TRUE(logs("log_types: [tensorboard]"));
  EXPECT_THAT(faults_of(recipe_of({pruning("log_types: some")})),
              HasSubstr("'GradualKSModifier.log_types' must be __ALL__, none or a list of names"));
}

TEST(ParamsStrict, MakesAMissingParameterAWarning) {
  const std::string missing = "params: [head, nothing]";
  for (const std::string& item :
       {"!ConstantKSModifier {" + missing, "!TrainableParamsModifier {" + missing,
        "!SetParamModifier {val: 1, start_epoch: 0, " + missing}) {
    EXPECT_THAT(compile_faults({item + "}"}),
                HasSubstr("the model has no layer or parameter 'nothing'"));
    const Timeline timeline = compiled(recipe_of({item + ", params_strict: false}"}), 10);
    ASSERT_EQ(timeline.warnings().size(), 1U);
    EXPECT_THAT(timeline.warnings()[0], HasSubstr("no layer or parameter 'nothing'"));
    EXPECT_EQ(timeline.actions().size(), 1U);
  }
}

TEST(ConstantPruning, MayHaveAWindow) {
  EXPECT_THAT(events({"!ConstantPruningModifier {params: [head]}"}),
              ElementsAre("0 keep the zeros of head.weight"));
  EXPECT_THAT(events({"!ConstantKSModifier {params: [head], start_epoch: 1, end_step: 25}"}),
              ElementsAre("10 keep the zeros of head.weight", "25 let go of head.weight"));
  EXPECT_THAT(events({"!ConstantKSModifier {params: [head], start_epoch: -1, end_epoch: -1}",
                      "!EpochRangeModifier {start_epoch: 0, end_epoch: 3}"}),
              ElementsAre("0 keep the zeros of head.weight"));
  EXPECT_THAT(faults_of(recipe_of({"!ConstantKSModifier {params: [head], start_epoch: 2, "
                                   "end_epoch: 1}"})),
              HasSubstr("it must be greater than start_epoch (2)"));
}

TEST(ConstantPruning, TakesOverWhereAGradualOneEndsOrLater) {
  const std::string gradual =
      "!GradualKSModifier {params: [head], init_sparsity: 0.1, final_sparsity: 0.8, start_epoch: "
      "0, "
      "end_epoch: 3, update_frequency: 1, leave_enabled: false}";
  const auto kept = [&](const std::string& more) {
    return steps_of(
        compiled(recipe_of({gradual, "!ConstantKSModifier {params: [head]" + more + "}"}), 10),
        ActionKind::kKeepZeros);
  };
  EXPECT_THAT(kept(""), ElementsAre(30));
  EXPECT_THAT(kept(", start_epoch: 1"), ElementsAre(30));
  EXPECT_THAT(kept(", start_epoch: 4"), ElementsAre(40));
  EXPECT_THAT(kept(", end_epoch: 2"), ElementsAre());
}

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
  EXPECT_THAT(faults("[2]"), HasSubstr("'SetLearningRateModifier.param_groups' is 2"));
  EXPECT_THAT(faults("[]"), HasSubstr("must name 0 (weights, which decay), 1 (the rest) or both"));
  EXPECT_THAT(faults("0"), HasSubstr("must be a list of whole numbers"));
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
                                          "10 let go of blocks.0.conv.weight",
                                          "10 keep the zeros of head.weight",
                                          "10 freeze blocks.0.conv.bias"};
  EXPECT_EQ(events(items), expected);
  EXPECT_EQ(events(std::vector<std::string>(items.rbegin(), items.rend())), expected);
}

}  // namespace
}  // namespace lockstep::recal
