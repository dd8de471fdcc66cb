// A recipe's variables: aliases of YAML, and eval().
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/recal/recipe/small_recipes.h"

namespace lockstep::recal {
namespace recipe_variables_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tests::end_of;
using tests::tags_of;
using tests::with_end;

// --- aliases ---

TEST(RecipeVariables, AnchorsAndAliases) {
  const std::string text = R"(version: 1.0.0
num_epochs: &num_epochs 7.5
layers: &layers ['blocks.0.conv', head]
modifiers:
  - &range !EpochRangeModifier
    start_epoch: 0
    end_epoch: *num_epochs
  - *range
  - !ConstantKSModifier
    params: *layers
)";
  const Recipe recipe = good_recipe(text);
  ASSERT_THAT(tags_of(recipe),
              ElementsAre("EpochRangeModifier", "EpochRangeModifier", "ConstantKSModifier"));
  EXPECT_EQ(recipe.modifiers()[0]->window().end->text(), "7.5");
  EXPECT_EQ(recipe.modifiers()[1]->location().line, 5);  // where it is written
  EXPECT_THAT(compiled(text, 10).param_sets()[0].names,
              ElementsAre("blocks.0.conv.weight", "head.weight"));
}

TEST(RecipeVariables, AFaultyAliasIsNamedWhereItIsWrittenAndUsed) {
  EXPECT_EQ(faults_of(with_end("n: &n -3\n", "*n")),
            "2:4: 'EpochRangeModifier.end_epoch' is -3, it must be >= 0 and <= 1000000 (used in "
            "line 6 by its alias)");
  EXPECT_THAT(faults_of(with_end("", "*n")),
              HasSubstr("(a string that begins with '*' or '&' must be quoted)"));
}

TEST(RecipeVariables, AliasesOfAliasesAreCounted) {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 9; ++i) {
    bomb += fmt::format("a{}: &a{} [", i, i);
    for (int k = 0; k < 10; ++k) bomb += fmt::format("{}*a{}", k ? ", " : "", i - 1);
    bomb += "]\n";
  }
  EXPECT_EQ(faults_of(bomb),
            "5:45: contains more than 100,000 nodes (each use of an alias counts)");
  std::string deep = "a0: &a0 [x]\n";
  for (int i = 1; i < 80; ++i) deep += fmt::format("a{}: &a{} [*a{}]\n", i, i, i - 1);
  EXPECT_EQ(faults_of(deep), "64:12: is nested more than 64 deep");
  EXPECT_EQ(faults_of("a: &a [1, *a]\n"),
            "1:11: this alias is inside its own anchor: it refers to itself");
}

// --- variables and eval ---

TEST(RecipeVariables, EvalTakesVariablesInAnyOrder) {
  EXPECT_EQ(end_of("n: 10\n", "eval(n)"), "10");
  EXPECT_EQ(end_of("n: 10\n", "eval(n * 0.5 - 1)"), "4");
  EXPECT_EQ(end_of("n: 10\n", "'eval(n / 4)'"), "2.5");
  EXPECT_EQ(end_of("n: 10\n", "\"eval( n+1 )\""), "11");
  EXPECT_EQ(end_of("a: eval(b * 2)\nb: eval(c + 1)\nc: '3'\n", "eval(a - b)"), "4");
  EXPECT_EQ(end_of("a: &a eval(2 * 3)\n", "*a"), "6");
  EXPECT_EQ(end_of("", "eval(1.1 * 100)"), "110");
  EXPECT_EQ(end_of("third: eval(1 / 3)\n", "eval(third * 3)"), "1");  // exact in between
  EXPECT_EQ(end_of("a: &a eval(1 / 3)\nb: *a\n", "eval(b * 3)"), "1");
}

TEST(RecipeVariables, EvalStandsAnywhereInAModifier) {
  const Recipe recipe = good_recipe(R"(init_lr: 0.1
first: 2
training_modifiers:
  - !LearningRateModifier
    start_epoch: 0
    end_epoch: eval(first * 10)
    lr_class: MultiStepLR
    lr_kwargs: {gamma: eval(1 - 0.1), milestones: [eval(first), 'eval(first + 3.5)']}
    init_lr: eval(init_lr)
)");
  EXPECT_EQ(recipe.modifiers()[0]->summary(), "MultiStepLR from 0.1, x0.9 at epochs 2, 5.5");
}

TEST(RecipeVariables, AValueThatIsRefusedIsNamedWithItsExpression) {
  EXPECT_EQ(faults_of(with_end("n: 10\n", "eval(n - 12)")),
            "6:16: 'EpochRangeModifier.end_epoch' is -2, it must be >= 0 and <= 1000000 "
            "(eval(n - 12) = -2)");
  EXPECT_EQ(faults_of(with_end("n: 10\n", "'eval(n - 10)'")),
            "6:16: 'EpochRangeModifier.end_epoch' is 0, it must be greater than start_epoch (0) "
            "(eval(n - 10) = 0)");
}

TEST(RecipeVariables, FaultsOfExpressionsHaveTheirColumn) {
  EXPECT_EQ(faults_of(with_end("n: 10\n", "eval(n * * 2)")),
            "6:25: 'eval(n * * 2)', character 10: a number, a variable or '(' is missing");
  EXPECT_EQ(faults_of(with_end("n: 10\n", "'eval(n / 0)'")),
            "6:24: 'eval(n / 0)', character 8: this divides by zero");
  EXPECT_EQ(faults_of(with_end("n: 10\n", "&x eval(n")),
            "6:25: 'eval(n', character 7: an operator or ')' is missing");
  EXPECT_EQ(faults_of(with_end("num_epochs: 10\n", "eval(1 + num_epoch)")),
            "6:25: 'eval(1 + num_epoch)', character 10: unknown variable 'num_epoch' (did you mean "
            "'num_epochs'?)");
  EXPECT_EQ(faults_of(with_end("a: 1\nb: 2\n", "eval(zzzzzz)")),
            "7:21: 'eval(zzzzzz)', character 6: unknown variable 'zzzzzz'; available: a, b");
  EXPECT_EQ(faults_of(with_end("a: 1\n", "eval(m)")),
            "6:21: 'eval(m)', character 6: unknown variable 'm'; available: a");
  EXPECT_EQ(faults_of(with_end("", "eval(n)")),
            "5:21: 'eval(n)', character 6: unknown variable 'n': a recipe's variables are its "
            "top-level numbers, and this recipe has none");
}

TEST(RecipeVariables, VariablesOfTextsAreNoNumbers) {
  const auto rest = [](const std::string& name) {
    return ", not a number of at most 18 digits; only a sole eval(" + name +
           ") may return something else";
  };
  EXPECT_EQ(faults_of(with_end("n: many\n", "eval(n * 2)")),
            "6:21: 'eval(n * 2)', character 6: 'n' is the string 'many'" + rest("n"));
  EXPECT_EQ(faults_of(with_end("n: [1]\n", "eval(1 + n)")),
            "6:25: 'eval(1 + n)', character 10: 'n' is a list" + rest("n"));
  EXPECT_EQ(faults_of(with_end("n:\n", "eval(n)")),
            "6:21: 'eval(n)', character 6: 'n' is nothing" + rest("n"));
  EXPECT_EQ(faults_of(with_end("n: many\n", "eval(n)")),
            "6:16: 'EpochRangeModifier.end_epoch' must be a finite decimal number, not 'many' "
            "(eval(n) = many)");
}

/// Modifiers of a recipe that prunes by this mask_type and these parameters, behind `top`.
std::string pruning_of(const std::string& top, const std::string& mask_type,
                       const std::string& params) {
  return top +
         "x_modifiers:\n  - !GMPruningModifier {init_sparsity: .05, final_sparsity: .8, "
         "start_epoch: 0, end_epoch: 2, update_frequency: .5, mask_type: " +
         mask_type + ", params: " + params + "}\n";
}

TEST(RecipeVariables, ABareNameInEvalGivesTheVariableAsItIs) {
  const auto rule = [](const std::string& top, const std::string& mask_type) {
    return compiled(pruning_of(top, mask_type, "[head]"), 10).param_sets()[0].mask_rule.kind.text();
  };
  EXPECT_EQ(rule("m: unstructured\n", "eval(m)"), "unstructured");
  EXPECT_EQ(rule("m: filter\n", "eval( m )"), "filter");
  EXPECT_EQ(rule("m: [1, 4]\n", "eval(m)"), "block4");
  EXPECT_EQ(rule("k: eval(m)\nm: eval(n)\nn: [1, 2]\n", "eval(k)"), "block2");
  EXPECT_EQ(rule("b: 8\nm: [1, eval(b / 2)]\n", "eval(m)"), "block4");
  const std::string names = "layers: ['blocks.0.conv', head]\n";
  EXPECT_THAT(compiled(pruning_of(names, "unstructured", "eval(layers)"), 10).param_sets()[0].names,
              ElementsAre("blocks.0.conv.weight", "head.weight"));
  EXPECT_THAT(faults_of(pruning_of("m: round\n", "eval(m)", "[head]")),
              HasSubstr("'GMPruningModifier.mask_type' must be unstructured, block4"));
  EXPECT_THAT(faults_of(pruning_of("m: [1, 4]\nl: [eval(m), head]\n", "block4", "eval(l)")),
              HasSubstr("'l' contains lists of lists, which eval() does not support"));
}

TEST(RecipeVariables, ListsPutInByEvalAreCounted) {
  std::string text = "l: [" + std::string("a");
  for (int i = 0; i < 999; ++i) text += ", a";
  text += "]\nx_modifiers:\n";
  for (int i = 0; i < 200; ++i) text += "  - !ConstantKSModifier {params: eval(l)}\n";
  EXPECT_THAT(faults_of(text),
              HasSubstr("the lists inserted by eval() contain more than 100,000 entries"));
}

TEST(RecipeVariables, CyclesAreNamedOnce) {
  EXPECT_EQ(faults_of(with_end("a: eval(b)\nb: eval(c + 1)\nc: eval(a)\n", "eval(a + b)")),
            "4:9: 'eval(a)', character 6: 'a' depends on itself: a -> b -> c -> a");
  EXPECT_EQ(faults_of(with_end("a: eval(a)\n", "3")),
            "2:9: 'eval(a)', character 6: 'a' depends on itself: a -> a");
}

TEST(RecipeVariables, LongChainsOfVariablesAreRefused) {
  const auto chain = [](int length) {
    std::string top;
    for (int i = 0; i < length; ++i) top += fmt::format("v{}: eval(v{} + 1)\n", i, i + 1);
    return with_end(top + fmt::format("v{}: 0\n", length), "eval(v0)");
  };
  EXPECT_EQ(faults_of(chain(60)), "");
  EXPECT_THAT(faults_of(chain(70)),
              HasSubstr("more than 64 variables depend on each other in a row"));
}

TEST(RecipeVariables, EvalBombsOverflow) {
  std::string top = "v0: 10\n";
  for (int i = 1; i < 60; ++i) top += fmt::format("v{}: eval(v{} * v{})\n", i, i - 1, i - 1);
  EXPECT_EQ(faults_of(with_end(top, "eval(v59)")),
            "8:13: 'eval(v5 * v5)', character 9: the exact result is too large or has too many "
            "digits");
}

TEST(RecipeVariables, AnInlinedListHasNoVariables) {
  Diagnostics faults;
  const YamlDocument document = YamlDocument::parse(
      "run.yaml",
      "n: 3\nmodifiers:\n  - !EpochRangeModifier {start_epoch: 0, end_epoch: eval(2 * 3)}\n",
      &faults);
  const Recipe recipe = recipe_of_modifiers(document.root()["modifiers"], document, &faults);
  EXPECT_TRUE(faults.empty()) << faults.text();
  EXPECT_EQ(recipe.modifiers()[0]->window().end->text(), "6");
}

TEST(RecipeVariables, EpochsOfFractionsFallOnTheRightStep) {
  for (int64_t whole = 1; whole <= 40; ++whole) {
    for (const int64_t parts : {3, 6, 7, 9, 11, 13}) {  // whole / parts epochs of `parts` steps
      const std::string text =
          "version: 1.0.0\nn: " + std::to_string(whole) +
          "\nmodifiers:\n  - !EpochRangeModifier {start_epoch: 0, end_epoch: eval(n / " +
          std::to_string(parts) + ")}\n";
      Diagnostics faults;
      const Timeline timeline = Timeline::compile(
          good_recipe(text), {.steps_per_epoch = parts, .base_learning_rate = 0.1}, &faults);
      EXPECT_TRUE(faults.empty()) << faults.text();
      EXPECT_EQ(timeline.total_steps(), whole) << whole << "/" << parts;
    }
  }
}

}  // namespace recipe_variables_test
}  // namespace lockstep::recal
