// Refused recipes, one case a line: place, found text, and what is allowed or meant.
#include <gmock/gmock.h>

#include "recal/recipe/recipe_reader.h"
#include "tests/recal/recipes.h"

namespace lockstep::recal {
namespace refusals_test {

struct Refusal {
  const char* what;
  std::string text;
  std::string fault;
};

std::ostream& operator<<(std::ostream& out, const Refusal& refusal) { return out << refusal.what; }

/// A gradual modifier with these keys and `params`, `init_sparsity` and `update_frequency`.
std::string pruning(const std::string& rest) {
  return "!GradualKSModifier {params: [head], init_sparsity: 0.1, update_frequency: 1, " + rest +
         "}";
}
std::string rate(const std::string& lr_class, const std::string& kwargs) {
  return "!LearningRateModifier {start_epoch: 0, end_epoch: 9, lr_class: " + lr_class +
         ", lr_kwargs: " + kwargs + "}";
}
const std::string kWindow = "start_epoch: 0, end_epoch: 5";

class Refusals : public ::testing::TestWithParam<Refusal> {};

TEST_P(Refusals, AreExact) {
  Diagnostics faults;
  const Recipe recipe = parse_recipe("r.yaml", GetParam().text, &faults);
  if (faults.empty())
    Timeline::compile(recipe,
                      {.steps_per_epoch = 10,
                       .base_learning_rate = 0.1,
                       .params = small_network(),
                       .layers = {{.name = "head", .weight_param = 4}}},
                      &faults);
  EXPECT_EQ(brief(faults), GetParam().fault) << GetParam().text;
}

INSTANTIATE_TEST_SUITE_P(
    Keys, Refusals,
    ::testing::Values(
        Refusal{"a required key is missing",
                recipe_of({"!SetLearningRateModifier {start_epoch: 1}"}),
                "3:5: 'SetLearningRateModifier.learning_rate' is required"},
        Refusal{"a required key has a twin", recipe_of({"!EpochRangeModifier {start_epoch: 0}"}),
                "3:5: 'EpochRangeModifier.end_epoch' (or 'end_step') is required"},
        Refusal{"a key is unknown and near another",
                recipe_of({"!ConstantKSModifier {parms: [head]}"}),
                "3:5: 'ConstantKSModifier.params' is required\n3:26: unknown key 'parms' in "
                "'ConstantKSModifier' (did you mean 'params'?)"},
        Refusal{"a key is unknown",
                recipe_of({"!EpochRangeModifier {" + kWindow + ", colour: red}"}),
                "3:56: unknown key 'colour' in 'EpochRangeModifier'; available: start_epoch, "
                "start_step, end_epoch, end_step"},
        Refusal{"a modifier is unknown and near another", recipe_of({"!EpochRangModifier {a: 1}"}),
                "3:5: unknown modifier !EpochRangModifier (did you mean 'EpochRangeModifier'?); "
                "available: " +
                    known_tags()},
        Refusal{"a modifier is unknown", recipe_of({"!SmoothQuantModifier {a: 1}"}),
                "3:5: unknown modifier !SmoothQuantModifier; available: " + known_tags()},
        Refusal{"an item has no tag", recipe_of({"{params: __ALL__}"}),
                "3:5: an item of 'modifiers' needs a tag that names it, such as "
                "!GradualKSModifier; available: " +
                    known_tags()},
        Refusal{"there are no modifiers", "version: 1.0.0\n", "1:1: 'modifiers' is required"},
        Refusal{"modifiers are no list", "version: 1.0.0\nmodifiers: !ConstantKSModifier {a: 1}\n",
                "2:12: 'modifiers' must be a list of items such as '- !EpochRangeModifier'"}));

INSTANTIATE_TEST_SUITE_P(
    Values, Refusals,
    ::testing::Values(
        Refusal{
            "the end is the start",
            recipe_of({"!EpochRangeModifier {start_epoch: 2, end_epoch: 2}"}),
            "3:53: 'EpochRangeModifier.end_epoch' is 2, it must be greater than start_epoch (2)"},
        Refusal{
            "the end is before the start",
            recipe_of({"!EpochRangeModifier {start_epoch: 2, end_epoch: 1.5}"}),
            "3:53: 'EpochRangeModifier.end_epoch' is 1.5, it must be greater than start_epoch (2)"},
        Refusal{
            "an epoch is negative",
            recipe_of({"!SetLearningRateModifier {start_epoch: -0.5, learning_rate: 0.1}"}),
            "3:44: 'SetLearningRateModifier.start_epoch' is -0.5, it must be >= 0 and <= 1000000"},
        Refusal{"quantization ends",
                recipe_of({"!QuantizationModifier {start_epoch: 0, end_epoch: 5}"}),
                "3:55: 'QuantizationModifier.end_epoch' may only be -1: once on, quantization "
                "stays on"},
        Refusal{"the sparsity falls", recipe_of({pruning("final_sparsity: 0.05, " + kWindow)}),
                "3:98: 'GradualKSModifier.final_sparsity' is 0.05, it must not be less than "
                "init_sparsity (0.1)"},
        Refusal{"everything is pruned", recipe_of({pruning("final_sparsity: 1.0, " + kWindow)}),
                "3:98: 'GradualKSModifier.final_sparsity' is 1.0, it must be >= 0 and < 1"},
        Refusal{"the sparsity is negative",
                recipe_of({pruning("final_sparsity: -0.5, " + kWindow)}),
                "3:98: 'GradualKSModifier.final_sparsity' is -0.5, it must be >= 0 and < 1"},
        Refusal{
            "the period is zero",
            recipe_of({"!GradualKSModifier {params: [head], init_sparsity: 0.1, final_sparsity: "
                       "0.8, update_frequency: 0, " +
                       kWindow + "}"}),
            "3:100: 'GradualKSModifier.update_frequency' is 0, it must be >= 1e-06 and <= 1000000"},
        Refusal{
            "the period is negative",
            recipe_of({"!GradualKSModifier {params: [head], init_sparsity: 0.1, final_sparsity: "
                       "0.8, update_frequency: -0.5, " +
                       kWindow + "}"}),
            "3:100: 'GradualKSModifier.update_frequency' is -0.5, it must be >= 1e-06 and <= "
            "1000000"},
        Refusal{"the class of rates is unknown", recipe_of({rate("StepsLR", "{gamma: 0.9}")}),
                "3:68: 'LearningRateModifier.lr_class' must be one of ExponentialLR, StepLR, "
                "MultiStepLR, CosineAnnealingWarmRestarts, not 'StepsLR' (did you mean 'StepLR'?)"},
        Refusal{"StepLR has no step", recipe_of({rate("StepLR", "{gamma: 0.9}")}),
                "3:87: 'LearningRateModifier.lr_kwargs.step' is required"},
        Refusal{"MultiStepLR has no milestones", recipe_of({rate("MultiStepLR", "{gamma: 0.9}")}),
                "3:92: 'LearningRateModifier.lr_kwargs.milestones' is required"},
        Refusal{"milestones fall",
                recipe_of({rate("MultiStepLR", "{gamma: 0.9, milestones: [3, 2]}")}),
                "3:121: 'LearningRateModifier.lr_kwargs.milestones' must rise: 2 follows 3"},
        Refusal{"lr_kwargs have one more key",
                recipe_of({rate("ExponentialLR", "{gamma: 0.9, step: 2}")}),
                "3:107: unknown key 'step' in 'LearningRateModifier.lr_kwargs'; available: gamma"},
        Refusal{"no params", recipe_of({"!ConstantKSModifier {params: []}"}),
                "3:34: 'ConstantKSModifier.params' must be __ALL__ or a list of names and "
                "re:patterns, not an empty list"},
        Refusal{"params match nothing", recipe_of({"!ConstantKSModifier {params: [heads]}"}),
                "3:35: the model has no layer or parameter 'heads' (did you mean 'head'?)"},
        Refusal{"a pattern is none", recipe_of({"!ConstantKSModifier {params: ['re:a[']}"}),
                "3:35: 're:a[' is not a regular expression (RE2): missing ]: ["},
        Refusal{
            "all stands beside names", recipe_of({"!ConstantKSModifier {params: [head, __ALL__]}"}),
            "3:41: __ALL__ already means every layer: write 'params: __ALL__' without a list"}));

INSTANTIATE_TEST_SUITE_P(
    Together, Refusals,
    ::testing::Values(
        Refusal{"quantization loses the zeros",
                recipe_of({pruning("final_sparsity: 0.8, leave_enabled: false, " + kWindow),
                           "!QuantizationModifier {start_epoch: 2}",
                           "!EpochRangeModifier {start_epoch: 0, end_epoch: 9}"}),
                "4:5: QuantizationModifier quantizes 'head' from step 20 on, but GradualKSModifier "
                "(r.yaml:3) releases its mask at step 50, and zeros would come back: keep them "
                "with a ConstantKSModifier listed after it, or with leave_enabled: true"},
        Refusal{"two write the learning rate",
                recipe_of({rate("ExponentialLR", "{gamma: 0.9}"),
                           "!SetLearningRateModifier {start_epoch: 3, learning_rate: 0.1}"}),
                "4:5: SetLearningRateModifier and LearningRateModifier (r.yaml:3) both write the "
                "learning rate at step 30 (epoch 3)"}));

INSTANTIATE_TEST_SUITE_P(
    Yaml, Refusals,
    ::testing::Values(
        Refusal{"a quoted text has no tag", recipe_of({"'!ConstantKSModifier'"}),
                "3:5: an item of 'modifiers' needs a tag that names it, such as "
                "!GradualKSModifier; available: " +
                    known_tags()},
        Refusal{"the version is a number", "version: 1.0\nmodifiers: []\n",
                "1:10: 'version' must be three numbers such as 1.0.0, not '1.0'"},
        Refusal{"a key stands twice",
                recipe_of({"!EpochRangeModifier {start_epoch: 0, end_epoch: 1, end_epoch: 2}"}),
                "3:56: duplicate key 'end_epoch': keep one of them"},
        Refusal{"a modifier has no body", recipe_of({"!ConstantKSModifier"}),
                "3:5: !ConstantKSModifier has no keys: write them below it, indented deeper than "
                "the dash"},
        Refusal{"infinity", recipe_of({"!EpochRangeModifier {start_epoch: 0, end_epoch: .inf}"}),
                "3:53: 'EpochRangeModifier.end_epoch' must be a finite decimal number, not '.inf'"},
        Refusal{"no number", recipe_of({"!EpochRangeModifier {start_epoch: 0, end_epoch: .nan}"}),
                "3:53: 'EpochRangeModifier.end_epoch' must be a finite decimal number, not '.nan'"},
        Refusal{"percent", recipe_of({"!EpochRangeModifier {start_epoch: 0, end_epoch: 5%}"}),
                "3:53: 'EpochRangeModifier.end_epoch' must be a finite decimal number, not '5%'"},
        Refusal{"a decimal comma",
                "version: 1.0.0\nmodifiers:\n  - !EpochRangeModifier\n    start_epoch: 0\n    "
                "end_epoch: 0,5\n",
                "5:16: 'EpochRangeModifier.end_epoch' must be a finite decimal number, not '0,5'"},
        Refusal{
            "an underscore", recipe_of({"!EpochRangeModifier {start_epoch: 0, end_epoch: 1_000}"}),
            "3:53: 'EpochRangeModifier.end_epoch' must be a finite decimal number, not '1_000'"},
        Refusal{"hexadecimal", recipe_of({"!EpochRangeModifier {start_epoch: 0, end_epoch: 0x10}"}),
                "3:53: 'EpochRangeModifier.end_epoch' must be a finite decimal number, not '0x10'"},
        Refusal{
            "too large for a double",
            recipe_of({"!EpochRangeModifier {start_epoch: 0, end_epoch: 1e400}"}),
            "3:53: 'EpochRangeModifier.end_epoch' must be a finite decimal number, not '1e400'"},
        Refusal{
            "nothing", recipe_of({"!EpochRangeModifier {start_epoch: 0, end_epoch: }"}),
            "3:53: 'EpochRangeModifier.end_epoch' must be a finite decimal number, not nothing"},
        Refusal{"an empty text", recipe_of({"!EpochRangeModifier {start_epoch: 0, end_epoch: ''}"}),
                "3:53: 'EpochRangeModifier.end_epoch' must be a finite decimal number, not ''"},
        Refusal{"a whole number with a point",
                recipe_of({"!EpochRangeModifier {start_step: 0, end_step: 5.0}"}),
                "3:51: 'EpochRangeModifier.end_step' must be a whole number, not '5.0'"},
        Refusal{"an octal number",
                recipe_of({"!EpochRangeModifier {start_step: 0, end_step: 012}"}),
                "3:51: 'EpochRangeModifier.end_step' must be a whole number, not '012'"},
        Refusal{"y is no truth value",
                recipe_of({pruning("final_sparsity: 0.8, leave_enabled: y, " + kWindow)}),
                "3:118: 'GradualKSModifier.leave_enabled' must be true or false, not 'y'"},
        Refusal{"1 is no truth value",
                recipe_of({pruning("final_sparsity: 0.8, leave_enabled: 1, " + kWindow)}),
                "3:118: 'GradualKSModifier.leave_enabled' must be true or false, not '1'"},
        Refusal{"a space behind re:", recipe_of({"!ConstantKSModifier {params: [re: .*conv]}"}),
                "3:35: 're: ...' with a space is a map in YAML: remove the space after 're:' or "
                "quote the whole pattern"},
        Refusal{"a star at the beginning",
                "version: 1.0.0\nmodifiers:\n  - !ConstantKSModifier\n    params: *.conv\n",
                "4:13: the referenced anchor is not defined (a string that begins with '*' or '&' "
                "must be quoted)"},
        Refusal{"a tab", "version: 1.0.0\nmodifiers:\n\t- !ConstantKSModifier\n",
                "3:2: this line contains a tab: indent with spaces"},
        Refusal{"a second document", "version: 1.0.0\nmodifiers: []\n---\na: 1\n",
                "3:1: contains a second document ('---'); one document per file is allowed"},
        Refusal{"a merge key",
                recipe_of({"!EpochRangeModifier {<<: {start_epoch: 0}, end_epoch: 1}"}),
                "3:26: merge keys ('<<') are not supported: write the keys out\n3:5: "
                "'EpochRangeModifier.start_epoch' (or 'start_step') is required"},
        Refusal{"an object of Python", recipe_of({"!!python/object:os.system {a: 1}"}),
                "3:5: unknown modifier 'tag:yaml.org,2002:python/object:os.system'; available: " +
                    known_tags()},
        Refusal{"an empty file", "", "0:0: is empty"},
        Refusal{"a comment alone", "# nothing\n", "0:0: is empty"}));

/// Values that look wrong but are right.
TEST(Refusals, AFractionOfAThirdIsNotTooLong) {
  for (const char* period : {"eval(1 / 3)", "eval(1 / 300)", "eval(1 / 30000)", "eval(1 / 300000)"})
    EXPECT_EQ(faults_of(recipe_of({std::string("!GradualKSModifier {params: [head], init_sparsity: "
                                               "0.1, final_sparsity: 0.8, update_frequency: ") +
                                   period + ", " + kWindow + "}"})),
              "")
        << period;
  // Exact where it matters: with 30,000 steps per epoch each step has its mask, none is missed.
  const Timeline timeline = compiled(
      recipe_of({"!GradualKSModifier {params: [head], init_sparsity: 0.1, final_sparsity: 0.8, "
                 "update_frequency: eval(1 / 30000), start_epoch: 0, end_epoch: 1}"}),
      30000);
  const std::vector<int64_t> steps = steps_of(timeline, ActionKind::kPrune);
  ASSERT_EQ(steps.size(), 30001U);
  for (size_t i = 0; i < steps.size(); ++i) ASSERT_EQ(steps[i], static_cast<int64_t>(i));
}

TEST(Refusals, WhatIsNotRefused) {
  for (const std::string& text :
       {recipe_of({"!EpochRangeModifier {start_epoch: '0.5', end_epoch: 012}"}),
        recipe_of({"!ConstantKSModifier {params: [re:.*conv]}"}),
        recipe_of({pruning("final_sparsity: 0.8, leave_enabled: 'TRUE', " + kWindow)}),
        std::string(R"({"version": "1.0.0", "modifiers": []})")})
    EXPECT_EQ(faults_of(text), "") << text;
}

}  // namespace refusals_test
}  // namespace lockstep::recal
