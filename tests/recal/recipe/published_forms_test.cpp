// One recipe for each form in which recipes are published elsewhere (tests/recal/recipes, in own
// words), with what becomes of it: the events of a plan without a model, or the first fault.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "recal/recipe/recipe_reader.h"
#include "recal/schedule/timeline_views.h"
#include "tests/recal/recipes.h"

namespace lockstep::recal {
namespace published_forms_test {

constexpr int64_t kSteps = 10;  // per epoch

struct Form {
  const char* file;
  std::vector<std::string> events;  ///< `step what`; of many like ones only those named here
  std::vector<std::string> notes;   ///< each a part of one of the plan's notes
  std::optional<int64_t> total_steps;
  std::string stage;  ///< "": all
};
struct RefusedForm {
  const char* file;
  std::string fault;  ///< `line:col: message`, or its beginning
  std::string stage;
  bool has_model = true;
};

std::ostream& operator<<(std::ostream& out, const Form& form) { return out << form.file; }
std::ostream& operator<<(std::ostream& out, const RefusedForm& form) { return out << form.file; }

Recipe load(const std::string& file, const std::string& stage, Diagnostics* faults) {
  return load_recipe(LOCKSTEP_SOURCE_DIR "/tests/recal/recipes/" + file, faults, stage);
}

class PublishedForms : public ::testing::TestWithParam<Form> {};
class RefusedForms : public ::testing::TestWithParam<RefusedForm> {};

TEST_P(PublishedForms, Load) {
  Diagnostics faults;
  const Recipe recipe = load(GetParam().file, GetParam().stage, &faults);
  const Timeline timeline =
      Timeline::compile(recipe, {.steps_per_epoch = kSteps, .base_learning_rate = 0.1}, &faults);
  ASSERT_TRUE(faults.empty()) << faults.text();
  std::vector<std::string> events;
  for (const Action& action : timeline.actions())
    events.push_back(std::to_string(action.step) + " " + describe(timeline, action));
  for (const std::string& event : GetParam().events)
    EXPECT_THAT(events, ::testing::Contains(event));
  for (const std::string& note : GetParam().notes)
    EXPECT_THAT(timeline.notes(), ::testing::Contains(::testing::HasSubstr(note)));
  EXPECT_EQ(timeline.total_steps(), GetParam().total_steps);
}

TEST_P(RefusedForms, NameTheWayOut) {
  Diagnostics faults;
  const Recipe recipe = load(GetParam().file, GetParam().stage, &faults);
  TimelineInputs inputs{.steps_per_epoch = kSteps, .base_learning_rate = 0.1, .layers = {}};
  if (GetParam().has_model)
    inputs.params = std::vector<ParamInfo>{{"classifier.fc.weight", true, 40}};
  if (faults.empty()) Timeline::compile(recipe, inputs, &faults);
  ASSERT_FALSE(faults.empty());
  EXPECT_EQ(brief(faults).substr(0, GetParam().fault.size()), GetParam().fault);
}

const std::string kAllPrunable = "__ALL_PRUNABLE__";

INSTANTIATE_TEST_SUITE_P(
    Recipes, PublishedForms,
    ::testing::Values(
        Form{.file = "eval_text_and_list.md",
             .events = {"20 sparsity 0.100000 for [classifier.fc]",
                        "60 sparsity 0.650000 for [classifier.fc]",
                        "60 sparsity 0.750000 for [re:sections.*conv.*]"},
             .notes = {"the recipe has no version"},
             .total_steps = 120},
        Form{
            .file = "defaults_of_set_and_rate.md",
            // 0.02, the rate in force at epoch 3, continues; it falls at epoch 6.
            .events = {"0 learning rate 0.02", "30 learning rate 0.02", "60 learning rate 0.005",
                       "0 weight decay 0.001 of parameter group 0"},
            .notes = {"SetLearningRateModifier: no start_epoch is given: using -1, the run's start",
                      "LearningRateModifier: no end_epoch is given: using -1, the run's end",
                      "SetWeightDecayModifier: no start_epoch is given"},
            .total_steps = 80},
        Form{.file = "stages_in_turn.yaml",
             .events = {"0 learning rate 0.05", "0 sparsity 0.100000 for [re:sections.*]",
                        "50 sparsity 0.700000 for [re:sections.*]", "60 learning rate 0.01",
                        "80 learning rate 0.001", "70 quantize __ALL__",
                        "90 freeze the quantization ranges"},
             .notes = {"stage 'prune_stage' runs from epoch 0 to epoch 6",
                       "stage 'recover_stage' runs from epoch 6 to epoch 10"},
             .total_steps = 100},
        Form{.file = "stages_in_turn.yaml",
             .events = {"0 learning rate 0.01", "20 learning rate 0.001", "10 quantize __ALL__",
                        "30 freeze the quantization ranges"},
             .notes = {"stage 'recover_stage' runs from epoch 0 to epoch 4"},
             .total_steps = 40,
             .stage = "recover_stage"},
        Form{.file = "stages_of_named_modifiers.yaml",
             .events = {"0 keep the zeros of [classifier.fc.weight]",
                        "30 release the masks of [classifier.fc.weight]",
                        "30 sparsity 0.100000 for [re:classifier.*weight]",
                        "55 sparsity 0.800000 for [re:classifier.*weight]"},
             .notes = {"stage 'sparse_stage' runs from epoch 3 to epoch 5.5"},
             .total_steps = 55},
        Form{.file = "stage_one_shot.yaml",
             .events = {"0 keep the zeros of __ALL__"},
             .notes = {},
             .total_steps = 20,
             .stage = "tune_stage"},
        Form{
            .file = "version_0.yaml",
            .events = {"0 learning rate 0.03", "40 learning rate 0.015", "70 learning rate 0.0075"},
            .notes = {"version 0.1.0 is read as 1.0.0"},
            .total_steps = 90},
        Form{.file = "version_none.yaml",
             .events = {},
             .notes = {"the recipe has no version: it is read as 1.0.0"},
             .total_steps = 20},
        Form{.file = "look_ahead_exclusion.yaml",
             .events = {"0 keep the zeros of [re:^((?!conv1).)*$]"},
             .notes = {},
             .total_steps = std::nullopt},
        Form{.file = "param_groups_of_three.yaml",
             .events = {"0 learning rate linear from 0 to 0.02 of parameter group 0",
                        "0 learning rate linear from 0 to 0.02 of parameter group 1",
                        "0 learning rate linear from 0.06 to 0.02 of parameter group 2"},
             .notes = {"parameter group 2 is not checked without a model"},
             .total_steps = 60},
        Form{.file = "target_map.md",
             .events = {"0 sparsity 0.200000 for [sections.0.conv1.weight, "
                        "sections.0.conv2.weight]",
                        "30 sparsity 0.600000 for [sections.0.conv1.weight, "
                        "sections.0.conv2.weight]",
                        "30 sparsity 0.850000 for [sections.1.conv1.weight]"},
             .notes = {},
             .total_steps = 50},
        Form{.file = "set_behind_the_range.yaml",
             .events = {"45 learning rate 0.001", "42 quantize __ALL__"},
             .notes = {"SetLearningRateModifier lengthens the run: it starts at epoch 4.5",
                       "QuantizationModifier lengthens the run: it starts at epoch 4.2"},
             .total_steps = 50},
        Form{.file = "two_gradual_in_a_row.yaml",
             .events = {"30 sparsity 0.600000 for " + kAllPrunable,
                        "60 sparsity 0.900000 for " + kAllPrunable},
             .notes = {},
             .total_steps = 60},
        Form{.file = "numbers_as_people_write_them.yaml",
             .events = {"5 learning rate 0", "0 weight decay 0.0005 of parameter group 0",
                        "1 sparsity 0.112857 for " + kAllPrunable,  // 0.05 + 0.65 (1 - (29/30)^3)
                        "30 sparsity 0.700000 for " + kAllPrunable},
             .notes = {},
             .total_steps = 40},
        Form{.file = "quantization/quant_ignore_and_overrides.yaml",
             .events = {"20 quantize __ALL__ except [sections.0.conv1, sections.1.conv2]",
                        "40 freeze the quantization ranges"},
             .notes = {"only linear layers and convolutions are quantized: GELU, RMSNorm, "
                       "Embedding are none"},
             .total_steps = 60},
        Form{.file = "quantization/quant_no_start.md",
             .events = {"0 quantize __ALL__ except [classifier]"},
             .notes =
                 {"QuantizationModifier: no start_epoch is given: using -1, the run's start; input "
                  "ranges follow the inputs of training",
                  "Embedding, BMMOutput_QK, ReLU are none"},
             .total_steps = 30},
        Form{.file = "quantization/quant_config_groups.yaml",
             .events = {"0 quantize [Linear, re:sections.*conv1] except [head]"},
             .notes = {"no start_epoch is given", "quantized: Embedding is none"},
             .total_steps = std::nullopt},
        Form{.file = "quantization/quant_scheme_one_head.yaml",
             .events = {"10 quantize __ALL__ except [classifier]"},
             .notes = {"the recipe has no version"},
             .total_steps = std::nullopt}));

INSTANTIATE_TEST_SUITE_P(
    Recipes, RefusedForms,
    ::testing::Values(
        RefusedForm{.file = "eval_text_in_arithmetic.yaml",
                    .fault = "7:26: 'eval(style * 2)', character 6: 'style' is the string "
                             "'unstructured', not a number"},
        RefusedForm{.file = "stage_without_end.yaml",
                    .fault = "1:1: stage 'keep_stage' names no end, so that none can follow it: "
                             "give it an !EpochRangeModifier, or run one stage (--stage NAME"},
        RefusedForm{
            .file = "stage_one_shot.yaml",
            .fault = "2:1: stage 'shrink_stage' is one-shot: it changes a model without "
                     "training, which is not supported; choose another stage (--stage NAME"},
        RefusedForm{.file = "stages_in_turn.yaml",
                    .fault = "3:1: unknown stage 'recovery_stage' (did you mean 'recover_stage'?)",
                    .stage = "recovery_stage"},
        RefusedForm{.file = "version_none.yaml",
                    .fault = "0:0: the recipe has no stages, so there is no stage 'x'",
                    .stage = "x"},
        RefusedForm{.file = "look_ahead_other.yaml",
                    .fault = "4:14: 're:sections(?=.*conv1).*' is not a regular expression (RE2): "
                             "invalid perl operator: (?=; look-ahead and look-behind are not "
                             "supported: for all names without X write re:^((?!X).)*$"},
        RefusedForm{
            .file = "param_groups_of_three.yaml",
            .fault = "14:5: LearningRateFunctionModifier names parameter group 2; available: 0 "
                     "(weights, which decay) and 1 (the rest: biases, normalisation)"},
        RefusedForm{.file = "two_gradual_overlapping.yaml",
                    .fault = "10:5: GMPruningModifier and GMPruningModifier ("},
        RefusedForm{
            .file = "quantization/quant_four_bits.yaml",
            .fault = "9:31: 'QuantizationModifier.config_groups.layers.weights.num_bits' is 4, it "
                     "must be 8: layers are rounded to int8; or exclude the layers: ignore",
            .has_model = false},
        RefusedForm{
            .file = "quantization/quant_calibrated.yaml",
            .fault = "5:28: 'QuantizationModifier.num_calibration_steps' is 64, it may only be 0 "
                     "or omitted: there is no calibration before training: input ranges follow the "
                     "inputs of training, until disable_quantization_observer_epoch"},
        RefusedForm{.file = "set_behind_the_range.yaml",
                    .fault = "9:5: the model has no layer to quantize"}));

TEST(Stages, AnExclusionSelectsWhatItDoesNotName) {
  Diagnostics faults;
  const Recipe recipe = load("look_ahead_exclusion.yaml", "", &faults);
  const Timeline timeline =
      Timeline::compile(recipe,
                        {.steps_per_epoch = kSteps,
                         .params = std::vector<ParamInfo>{{"a.conv1.weight", true, 4},
                                                          {"a.conv2.weight", true, 4},
                                                          {"conv1.weight", true, 4},
                                                          {"fc.weight", true, 4}}},
                        &faults);
  ASSERT_TRUE(faults.empty()) << faults.text();
  EXPECT_THAT(timeline.param_sets()[0].names,
              ::testing::ElementsAre("a.conv2.weight", "fc.weight"));
}

TEST(Stages, EachHasVariablesOfItsOwnAndMayBeLeftOut) {
  const std::string text = R"(n: 3
a_stage:
  n: 5
  x_modifiers: [!EpochRangeModifier {start_epoch: 0, end_epoch: eval(n)}]
off_stage:
  enabled: false
  x_modifiers: [!EpochRangeModifier {start_epoch: 0, end_epoch: 100}]
b_stage:
  x_modifiers: [!EpochRangeModifier {start_epoch: 0, end_epoch: eval(n)}]
)";
  EXPECT_EQ(compiled(text, 10).total_steps(), 80);
  EXPECT_THAT(good_recipe(text).notes(),
              ::testing::Contains("r.yaml:5: stage 'off_stage' is skipped: it has enabled: false"));
}

/// Two stages that share their list by an alias; `top` stands above them.
std::string shared_list(const std::string& first_target, const std::string& second_target,
                        const std::string& top = "") {
  return top + "a_stage:\n  target: " + first_target + R"(
  pruning_modifiers: &m
    - !GMPruningModifier
      params: eval(layers)
      init_sparsity: 0.05
      final_sparsity: eval(target)
      start_epoch: 0
      end_epoch: eval(length)
      update_frequency: 1
  layers: &l [eval(layer)]
  layer: head
b_stage:
  target: )" +
         second_target + R"(
  pruning_modifiers: *m
  layers: *l
  layer: blocks.0.conv
)";
}

TEST(Stages, AListSharedByAnAliasHasEachStagesOwnValues) {
  const Timeline timeline =
      compiled(shared_list("0.5", "0.9", "length: eval(2 * two)\ntwo: 2\n"), 10);
  std::vector<std::string> events;
  for (const Action& action : timeline.actions())
    events.push_back(std::to_string(action.step) + " " + describe(timeline, action));
  EXPECT_THAT(events, ::testing::Contains("40 sparsity 0.500000 for head.weight"));
  EXPECT_THAT(events, ::testing::Contains("80 sparsity 0.900000 for blocks.0.conv.weight"));
  const Recipe recipe = good_recipe(shared_list("0.5", "0.9", "length: 4\n"));
  ASSERT_EQ(recipe.modifiers().size(), 2U);
  EXPECT_EQ(recipe.modifiers()[1]->location().line, 5);  // where it is written
}

TEST(Stages, AFaultInASharedListNamesEachStagesValue) {
  EXPECT_EQ(faults_of(shared_list("0.5", "1.5", "length: 4\n")),
            "8:23: 'GMPruningModifier.final_sparsity' is 1.5, it must be >= 0 and < 1 "
            "(eval(target) = 0.5, in another stage 1.5)");
  // A failure of the top level is told once.
  EXPECT_EQ(faults_of(shared_list("0.5", "0.9", "length: 4\nx: eval(1 / 0)\n")),
            "2:11: 'eval(1 / 0)', character 8: this divides by zero");
}

TEST(Stages, SharingInALongFileIsCapped) {
  const auto text = [](int num_stages) {
    std::string all = "# " + std::string(1'000'000, 'x') + "\ns0: {n: 1, x_modifiers: &m " +
                      "[!EpochRangeModifier {start_epoch: 0, end_epoch: eval(n)}]}\n";
    for (int i = 1; i < num_stages; ++i) all += fmt::format("s{}: {{n: 2, x_modifiers: *m}}\n", i);
    return all;
  };
  EXPECT_EQ(compiled(text(4), 10).total_steps(), 70);
  EXPECT_THAT(faults_of(text(20)),
              ::testing::HasSubstr("too many stages of this long file have eval(...) of others by "
                                   "aliases: write their lists out"));
}

TEST(Stages, WhatHasNoEndAndStartsTheStageDoesNotLengthenIt) {
  const std::string first =
      "a_stage:\n  x_modifiers: [!EpochRangeModifier {start_step: 0, end_step: 100}, "
      "!SetLearningRateModifier {learning_rate: 0.1}]\n";
  EXPECT_EQ(compiled(first, 10).total_steps(), 100);
  const std::string second =
      "b_stage:\n  x_modifiers: [!EpochRangeModifier {start_step: 0, end_step: 50}]\n";
  EXPECT_EQ(compiled(first + second, 10).total_steps(), 150);
}

TEST(Stages, OnlyTheLastStageMayEndInEpochsAndInSteps) {
  const std::string mixed =
      "  x_modifiers: [!EpochRangeModifier {start_epoch: 0, end_epoch: 10}, "
      "!EpochRangeModifier {start_step: 0, end_step: 500}]\n";
  EXPECT_EQ(compiled("a_stage:\n" + mixed, 10).total_steps(), 500);
  EXPECT_EQ(compiled("a_stage:\n" + mixed, 100).total_steps(), 1000);
  EXPECT_THAT(good_recipe("a_stage:\n" + mixed).notes(),
              ::testing::Contains("r.yaml:1: stage 'a_stage' runs from epoch 0 to the run's end"));
  const std::string text = "a_stage:\n" + mixed + "b_stage:\n" + mixed;
  Diagnostics faults;
  EXPECT_EQ(parse_recipe("r.yaml", text, &faults, "a_stage").modifiers().size(), 2U);
  EXPECT_TRUE(faults.empty()) << faults.text();
  EXPECT_THAT(faults_of(text),
              ::testing::HasSubstr("1:1: stage 'a_stage' has an end at epoch 10 and one at step "
                                   "500: write both in epochs or both in steps"));
}

TEST(Stages, OfThirdsOfAnEpochFallOnTheRightStep) {
  const auto stage = [](const std::string& name, const std::string& end) {
    return name + ":\n  x_modifiers: [!EpochRangeModifier {start_epoch: 0, end_epoch: " + end +
           "}]\n";
  };
  EXPECT_EQ(compiled(stage("a", "10") + stage("b", "eval(10 / 3)"), 3).total_steps(), 40);
  EXPECT_EQ(compiled(stage("a", "eval(10 / 3)") + stage("b", "eval(20 / 3)"), 3).total_steps(), 30);
  EXPECT_EQ(
      compiled(stage("a", "eval(29 / 3)") + stage("b", "eval(1 / 3)") + stage("c", "eval(2 / 3)"),
               3)
          .total_steps(),
      32);
}

TEST(Stages, MomentsThatCannotBePlacedAreRefused) {
  const auto faults = [](const std::string& first, const std::string& second) {
    return faults_of("a_stage:\n  x_modifiers: [!EpochRangeModifier {" + first +
                     "}]\nb_stage:\n  x_modifiers: [!EpochRangeModifier {" + second + "}]\n");
  };
  EXPECT_EQ(faults("start_step: 0, end_step: 40", "start_step: 5, end_step: 9"), "");
  EXPECT_EQ(faults("start_step: 0, end_step: 40", "start_epoch: 0, end_step: 9"), "");
  EXPECT_THAT(faults("start_step: 0, end_step: 40", "start_epoch: 0, end_epoch: 9"),
              ::testing::HasSubstr("3:1: stage 'b_stage': 'epoch 9' counts from its stage's start, "
                                   "which is at step 40: write both in epochs or both in steps"));
  EXPECT_THAT(faults("start_epoch: 0, end_epoch: 2", "start_epoch: 0, end_step: 9"),
              ::testing::HasSubstr("'step 9' counts from its stage's start, which is at epoch 2"));
  EXPECT_THAT(faults_of("a_stage:\n  run_type: fast\n  enabled: maybe\n  x_modifiers: []\n"),
              ::testing::HasSubstr("2:13: 'a_stage.run_type' must be train or oneshot\n3:12: "
                                   "'a_stage.enabled' must be true or false"));
}

TEST(Stages, AMinusOneIsTheStagesOwnStartOrEnd) {
  const Timeline timeline = compiled(R"(
a_stage:
  x_modifiers:
    - !EpochRangeModifier {start_epoch: 0, end_epoch: 2}
b_stage:
  x_modifiers:
    - !EpochRangeModifier {start_epoch: 0, end_epoch: 3}
    - !ConstantKSModifier {params: [head]}
    - !TrainableParamsModifier {params: [head.bias], trainable: false, start_epoch: -1, end_epoch: -1}
c_stage:
  x_modifiers:
    - !EpochRangeModifier {start_epoch: 0, end_epoch: 1}
    - !ConstantKSModifier {params: [blocks.0.conv]}
)",
                                     10);
  std::vector<std::string> events;
  for (const Action& action : timeline.actions())
    events.push_back(std::to_string(action.step) + " " + describe(timeline, action));
  EXPECT_THAT(events, ::testing::ElementsAre(
                          "20 keep the zeros of head.weight", "20 freeze head.bias",
                          "50 release the masks of head.weight",
                          "50 keep the zeros of blocks.0.conv.weight", "50 train head.bias"));
  EXPECT_EQ(timeline.total_steps(), 60);
}

}  // namespace published_forms_test
}  // namespace lockstep::recal
