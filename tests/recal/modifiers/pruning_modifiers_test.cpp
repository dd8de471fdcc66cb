// Timeline of modifiers that prune.
#include <gmock/gmock.h>

#include "tests/recal/modifiers/timeline_events.h"

namespace lockstep::recal {
namespace pruning_modifiers_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tests::events;

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
  EXPECT_EQ(kind("2:4 transposable"), "2:4 transposable");
  EXPECT_EQ(kind("filter"), "filter");
  EXPECT_EQ(kind("channel"), "channel");
  for (const std::string bad : {"'4:2'", "[4, 1]", "blocks", "[]", "{a: 1}"})
    EXPECT_THAT(faults_of(recipe_of({pruning("mask_type: " + bad)})),
                HasSubstr("'GradualKSModifier.mask_type' must be unstructured, block4 (or [1, N]: "
                          "blocks of N inputs of one output, N <= 64), N:M such as 2:4 with 0 < N "
                          "< M <= 64, 2:4 transposable, filter or channel, not '"));
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
  EXPECT_EQ(set("score_type: movement").score.text(), "movement");
  EXPECT_THAT(faults_of(recipe_of({pruning("score_type: size")})),
              HasSubstr("'GradualKSModifier.score_type' must be one of magnitude, movement, not"));
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
              HasSubstr("'GMPruningModifier.params' must be [] or omitted"));
  EXPECT_THAT(faults_of(recipe_of({item("final_sparsity: {0.2: [head]}")})),
              HasSubstr("it must not be less than init_sparsity (0.35)"));
  EXPECT_THAT(faults_of(recipe_of({item("final_sparsity: {1.5: [head], most: [head]}")})),
              HasSubstr("its keys must be sparsities, >= 0 and < 1"));
  EXPECT_THAT(faults_of(recipe_of({item("final_sparsity: {0.5: []}")})),
              HasSubstr("not an empty list"));
  EXPECT_THAT(faults_of(recipe_of({item("final_sparsity: {}")})), HasSubstr("is empty"));
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
  // The second modifier continues with the masks that the first releases at its end, in any order.
  std::vector<std::string> with_release = expected;
  with_release.insert(with_release.begin() + 3, "100 release the masks of head.weight");
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
  EXPECT_THAT(
      events({"!ConstantKSModifier {params: [head], start_epoch: 1, end_step: 25}"}),
      ElementsAre("10 keep the zeros of head.weight", "25 release the masks of head.weight"));
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

}  // namespace pruning_modifiers_test
}  // namespace lockstep::recal
