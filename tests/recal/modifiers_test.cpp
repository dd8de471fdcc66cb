// What each modifier becomes in the timeline.
#include <gmock/gmock.h>

#include "recal/plan/timeline_views.h"
#include "recipes.h"

namespace lockstep::recal {
namespace modifiers_test {

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
  for (const std::string bad : {"'4:2'", "[4, 1]", "blocks", "[]", "{a: 1}"})
    EXPECT_THAT(faults_of(recipe_of({pruning("mask_type: " + bad)})),
                HasSubstr("'GradualKSModifier.mask_type' must be unstructured, block4 (or [1, N]: "
                          "blocks of N inputs of one output, N <= 64), N:M such as 2:4 with 0 < N "
                          "< M <= 64, filter or channel, not '"));
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
    EXPECT_EQ(timeline.modifiers()[0].param_logs == ParamLogs::kEverywhere, timeline.logs_param(4));
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

TEST(GradualPruning, ATargetForEachSetOfParameters) {
  const std::string map =
      "final_sparsity: {0.8: [head], .9: ['re:blocks.*', 'blocks.0.conv.weight']}";
  const auto item = [](const std::string& more) {
    return "!GMPruningModifier {init_sparsity: 0.35, start_epoch: 1, end_epoch: 2, "
           "update_frequency: 1, " +
           more + "}";
  };
  const Timeline timeline = compiled(recipe_of({item("params: [], " + map)}), 10);
  EXPECT_THAT(
      events(timeline),
      ElementsAre("10 sparsity 0.350000 for head.weight", "10 sparsity 0.350000 for 2 parameters",
                  "20 sparsity 0.800000 for head.weight", "20 sparsity 0.900000 for 2 parameters"));
  EXPECT_DOUBLE_EQ(timeline.target_sparsity_at(20), (0.8 * 40 + 0.9 * (72 + 144)) / 256);
  EXPECT_EQ(compiled(recipe_of({item(map)}), 10).digest(), timeline.digest());
  EXPECT_THAT(faults_of(recipe_of({item("params: [head], " + map)})),
              HasSubstr("'GMPruningModifier.params' must be [] or left out"));
  EXPECT_THAT(faults_of(recipe_of({item("final_sparsity: {0.2: [head]}")})),
              HasSubstr("it must not be less than init_sparsity (0.35)"));
  EXPECT_THAT(faults_of(recipe_of({item("final_sparsity: {1.5: [head], most: [head]}")})),
              HasSubstr("its keys must be sparsities, >= 0 and < 1"));
  EXPECT_THAT(faults_of(recipe_of({item("final_sparsity: {0.5: []}")})),
              HasSubstr("not an empty list"));
  EXPECT_THAT(faults_of(recipe_of({item("final_sparsity: {}")})), HasSubstr("names nothing"));
  EXPECT_THAT(faults_of(recipe_of({item("global_sparsity: true, " + map)})),
              HasSubstr("global_sparsity has one threshold for all"));
  EXPECT_THAT(compile_faults({item("final_sparsity: {0.5: [head], 0.6: [head]}")}),
              HasSubstr("both prune 'head.weight'"));
}

TEST(GradualPruning, BlocksOfOneOutput) {
  const auto kind = [](const std::string& mask_type) {
    return compiled(recipe_of({pruning("mask_type: " + mask_type)}), 10)
        .param_sets()[0]
        .mask_rule.kind.text();
  };
  EXPECT_EQ(kind("[1, 4]"), "block4");
  EXPECT_EQ(kind("[1, 1]"), "unstructured");
  EXPECT_EQ(kind("'[1,16]'"), "block16");
  EXPECT_EQ(kind("block64"), "block64");
  for (const std::string other :
       {"[4, 1]", "[1, 65]", "[1, 0]", "[2, 4]", "[4]", "block", "blocks"})
    EXPECT_THAT(faults_of(recipe_of({pruning("mask_type: " + other)})),
                HasSubstr("block4 (or [1, N]: blocks of N inputs of one output, N <= 64)"))
        << other;
}

TEST(GradualPruning, OneAfterAnotherIsOneSchedule) {
  const auto item = [](const std::string& values) {
    return "!GradualKSModifier {params: [head], update_frequency: 5, inter_func: linear, " +
           values + "}";
  };
  const std::string first =
      item("init_sparsity: 0.1, final_sparsity: 0.5, start_epoch: 0, end_epoch: 10");
  const std::string released = item(
      "init_sparsity: 0.1, final_sparsity: 0.5, start_epoch: 0, end_epoch: 10, leave_enabled: "
      "false");
  const std::string second =
      item("init_sparsity: 0.5, final_sparsity: 0.9, start_epoch: 10, end_epoch: 20");
  const std::vector<std::string> expected{
      "0 sparsity 0.100000 for head.weight",   "50 sparsity 0.300000 for head.weight",
      "100 sparsity 0.500000 for head.weight", "100 sparsity 0.500000 for head.weight",
      "150 sparsity 0.700000 for head.weight", "200 sparsity 0.900000 for head.weight"};
  EXPECT_EQ(events({first, second}), expected);
  EXPECT_EQ(events({second, first}), expected);
  const Timeline timeline = compiled(recipe_of({first, second}), 10);
  EXPECT_DOUBLE_EQ(timeline.target_sparsity_at(149), 0.5);
  EXPECT_DOUBLE_EQ(timeline.target_sparsity_at(150), 0.7);
  // What the first lets go at its end, the second takes up there, wherever it stands.
  std::vector<std::string> with_release = expected;
  with_release.insert(with_release.begin() + 3, "100 let go of head.weight");
  EXPECT_EQ(events({released, second}), with_release);
  EXPECT_EQ(events({second, released}), with_release);
  EXPECT_EQ(
      compile_faults({first, item("init_sparsity: 0.5, final_sparsity: 0.9, start_epoch: 9.5, "
                                  "end_epoch: 20")}),
      "4:5: GradualKSModifier and GradualKSModifier (r.yaml:3) both prune 'head.weight' at step "
      "95: let one end where the other starts");
  EXPECT_THAT(
      compiled(recipe_of({first, item("init_sparsity: 0.2, final_sparsity: 0.9, start_epoch: "
                                      "12, end_epoch: 20")}),
               10)
          .warnings(),
      ::testing::Contains("r.yaml:4: GradualKSModifier: starts at sparsity 0.2 while "
                          "GradualKSModifier (r.yaml:3) leaves 'head.weight' at 0.5: nothing "
                          "more is pruned until the curve passes that"));
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
  const std::string known =
      "there are 0 (weights, which decay) and 1 (the rest: biases, normalisation)";
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
  // What a schedule ends with, and one schedule behind another.
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
          "r.yaml:4: LearningRateModifier: no end_epoch is given: -1, the run's end is taken",
          "r.yaml:5: SetLearningRateModifier: no start_epoch is given: -1, the run's start is "
          "taken",
          "r.yaml:6: SetWeightDecayModifier: no start_epoch is given: -1, the run's start is taken",
          "r.yaml:8: SetParamModifier: no start_epoch is given: -1, the run's start is taken"));
  EXPECT_EQ(timeline.modifiers()[1].end_step, 60);
  EXPECT_EQ(timeline.learning_rate_at(0), 0.0);
  EXPECT_EQ(timeline.learning_rate_at(59), 0.4 * 0.125);
  EXPECT_EQ(timeline.weight_decay_at(0, kOtherGroup), 0.2);
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
                                          "10 let go of blocks.0.conv.weight",
                                          "10 keep the zeros of head.weight",
                                          "10 freeze blocks.0.conv.bias"};
  EXPECT_EQ(events(items), expected);
  EXPECT_EQ(events(std::vector<std::string>(items.rbegin(), items.rend())), expected);
}

}  // namespace modifiers_test
}  // namespace lockstep::recal
