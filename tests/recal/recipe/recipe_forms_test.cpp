// The forms in which a recipe may come: lists, variables, aliases, Markdown.
#include <filesystem>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "base/files/files.h"
#include "recal/recipe/recipe_reader.h"
#include "tests/recal/recipes.h"

namespace lockstep::recal {
namespace recipe_forms_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> tags_of(const Recipe& recipe) {
  std::vector<std::string> tags;
  for (const auto& modifier : recipe.modifiers()) tags.emplace_back(modifier->tag());
  return tags;
}

/// Diagnostics of a text in a file of this name.
std::string faults_in(const std::string& file, const std::string& text) {
  Diagnostics faults;
  parse_recipe(file, text, &faults);
  return brief(faults);
}

/// A recipe whose last line is `end_epoch: VALUE`, behind these top-level lines.
std::string with_end(const std::string& top, const std::string& value) {
  return "version: 1.0.0\n" + top +
         "modifiers:\n  - !EpochRangeModifier\n    start_epoch: 0\n    end_epoch: " + value + "\n";
}
/// The end of the run that such a recipe gives.
std::string end_of(const std::string& top, const std::string& value) {
  const Recipe recipe = good_recipe(with_end(top, value));
  return recipe.empty() ? "" : recipe.modifiers()[0]->window().end->text();
}

// --- lists ---

TEST(RecipeForms, AllListsWhoseNamesEndInModifiersInTheFilesOrder) {
  const Recipe recipe = good_recipe(R"(
training_modifiers:
  - !EpochRangeModifier {start_epoch: 0, end_epoch: 3}
  - !SetLearningRateModifier {start_epoch: 0, learning_rate: 0.1}
pruning_modifiers:
  - !ConstantKSModifier {params: __ALL__}
modifiers: []
)");
  EXPECT_THAT(tags_of(recipe),
              ElementsAre("EpochRangeModifier", "SetLearningRateModifier", "ConstantKSModifier"));
}

TEST(RecipeForms, AnOldVersionOrNoneIsReadAsTheFirstWithANote) {
  const auto notes_of = [](const std::string& text) { return good_recipe(text).notes(); };
  EXPECT_THAT(notes_of("version: 1.0.0\nmodifiers: []\n"), ElementsAre());
  EXPECT_THAT(notes_of("version: 1.1.0\nmodifiers: []\n"), ElementsAre());
  EXPECT_THAT(notes_of("version: 0.1.0\nmodifiers: []\n"),
              ElementsAre("r.yaml: version 0.1.0 is read as 1.0.0"));
  for (const char* text : {"modifiers: []\n", "pruning_modifiers: []\n"})
    EXPECT_THAT(notes_of(text),
                ElementsAre("r.yaml: the recipe names no version: it is read as 1.0.0"));
  EXPECT_EQ(faults_of("version: 2.0.0\npruning_modifiers: []\n"),
            "1:10: 'version' is 2.0.0; this program reads versions up to 1.x");
  EXPECT_EQ(faults_of("version: 1\nmodifiers: []\n"),
            "1:10: 'version' must be three numbers such as 1.0.0, not '1'");
}

TEST(RecipeForms, EachListMustBeOne) {
  EXPECT_EQ(faults_of("a_modifiers: []\nb_modifiers: {a: 1}\nc_modifiers:\n"),
            "2:14: 'b_modifiers' must be a list of items such as '- !EpochRangeModifier'\n"
            "3:1: 'c_modifiers' must be a list of items such as '- !EpochRangeModifier'");
}

TEST(RecipeForms, ScalarsWhoseNamesMerelyHoldModifiersAreVariables) {
  EXPECT_EQ(end_of("modifiers_end: 3\n", "eval(modifiers_end)"), "3");
  EXPECT_EQ(end_of("modifiers2: 3\n", "eval(modifiers2)"), "3");
  EXPECT_EQ(faults_of(with_end("info: {modifiers_used: 3}\n", "1")), "");
  EXPECT_EQ(faults_of(with_end("modifiers_info: {used: 3}\n", "1")), "");
  EXPECT_EQ(faults_of("x_stage:\n  modifiers_end: 3\n  modifiers_1: [!EpochRangeModifier "
                      "{start_epoch: 0, end_epoch: eval(modifiers_end)}]\n"),
            "");
  EXPECT_EQ(
      good_recipe("modifiers_of_x:\n  EpochRangeModifier: {start: 0, end: 3}\n").modifiers().size(),
      1U);
  EXPECT_EQ(faults_of("x_modifiers: 0.1\n"),
            "1:14: 'x_modifiers' must be a list of items such as '- !EpochRangeModifier'");
  EXPECT_THAT(faults_of(with_end("modifiers_x: !Wrong 1\n", "1")),
              HasSubstr("2:1: unknown key 'modifiers_x': a recipe holds"));
}

TEST(RecipeForms, WhatActsOnceOrHasNoEndTakesAnEndOfMinusOne) {
  const auto faults = [](const std::string& end) {
    return faults_of(
        "modifiers:\n  SetLearningRateModifier: {start: 1, learning_rate: 0.1, end: " + end +
        "}\n  SetWeightDecayModifier: {start: 1, weight_decay: 0.1, end: " + end +
        "}\n  SetParamModifier: {start: 1, targets: [a], val: 1, end: " + end +
        "}\n  QuantizationModifier: {start: 1, end: " + end + "}\n");
  };
  EXPECT_EQ(faults("-1"), "");
  EXPECT_THAT(faults("4"), HasSubstr("'SetLearningRateModifier.end' may only be -1: it acts once"));
  EXPECT_THAT(faults("4"), HasSubstr("'SetWeightDecayModifier.end' may only be -1"));
  EXPECT_THAT(faults("4"), HasSubstr("'SetParamModifier.end' may only be -1"));
  EXPECT_THAT(faults("4"), HasSubstr("'QuantizationModifier.end' may only be -1"));
}

TEST(RecipeForms, OtherTopLevelEntriesAreVariables) {
  EXPECT_EQ(
      faults_of("a: 1\nb: text\nc: true\nd:\ne: [x, y]\nf: {0.5: [x], 0.6: y}\nx_modifiers: []\n"),
      "");
  const std::string rule =
      ": a recipe holds 'version', variables (numbers, texts, lists of them), lists of modifiers, "
      "whose names hold 'modifiers', or stages, which are maps of such lists";
  EXPECT_EQ(faults_of("stage:\n  pruning_modifiers: []\nx_modifiers: []\n"),
            "3:1: 'x_modifiers' stands beside stages (stage): move it into one of them");
  EXPECT_EQ(faults_of("pruning: [!ConstantKSModifier {params: __ALL__}]\nx_modifiers: []\n"),
            "1:1: unknown key 'pruning'" + rule);
  EXPECT_EQ(faults_of("a: {b: {c: 1}}\nx_modifiers: []\n"), "1:1: unknown key 'a'" + rule);
  EXPECT_EQ(faults_of("modifer: 3\nx_modifiers: []\n"),
            "1:1: unknown key 'modifer' (did you mean 'modifiers'?)");
}

// --- aliases ---

TEST(RecipeForms, AnchorsAndAliases) {
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

TEST(RecipeForms, AFaultyAliasIsNamedWhereItIsWrittenAndUsed) {
  EXPECT_EQ(faults_of(with_end("n: &n -3\n", "*n")),
            "2:4: 'EpochRangeModifier.end_epoch' is -3, it must be >= 0 and <= 1000000 (used in "
            "line 6 by its alias)");
  EXPECT_THAT(faults_of(with_end("", "*n")),
              HasSubstr("(a text that begins with '*' or '&' must be quoted)"));
}

TEST(RecipeForms, AliasesOfAliasesAreCounted) {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 9; ++i) {
    bomb += fmt::format("a{}: &a{} [", i, i);
    for (int k = 0; k < 10; ++k) bomb += fmt::format("{}*a{}", k ? ", " : "", i - 1);
    bomb += "]\n";
  }
  EXPECT_EQ(faults_of(bomb),
            "5:45: holds more than 100,000 nodes (each use of an alias counts "
            "anew)");
  std::string deep = "a0: &a0 [x]\n";
  for (int i = 1; i < 80; ++i) deep += fmt::format("a{}: &a{} [*a{}]\n", i, i, i - 1);
  EXPECT_EQ(faults_of(deep), "64:12: is nested more than 64 deep");
  EXPECT_EQ(faults_of("a: &a [1, *a]\n"),
            "1:11: this alias stands inside what it names: it refers to itself");
}

// --- variables and eval ---

TEST(RecipeForms, EvalTakesVariablesInAnyOrder) {
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

TEST(RecipeForms, EvalStandsAnywhereInAModifier) {
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

TEST(RecipeForms, AValueThatIsRefusedIsNamedWithItsExpression) {
  EXPECT_EQ(faults_of(with_end("n: 10\n", "eval(n - 12)")),
            "6:16: 'EpochRangeModifier.end_epoch' is -2, it must be >= 0 and <= 1000000 "
            "(eval(n - 12) = -2)");
  EXPECT_EQ(faults_of(with_end("n: 10\n", "'eval(n - 10)'")),
            "6:16: 'EpochRangeModifier.end_epoch' is 0, it must be greater than start_epoch (0) "
            "(eval(n - 10) = 0)");
}

TEST(RecipeForms, FaultsOfExpressionsHaveTheirColumn) {
  EXPECT_EQ(faults_of(with_end("n: 10\n", "eval(n * * 2)")),
            "6:25: 'eval(n * * 2)', character 10: a number, a variable or '(' is missing");
  EXPECT_EQ(faults_of(with_end("n: 10\n", "'eval(n / 0)'")),
            "6:24: 'eval(n / 0)', character 8: this divides by zero");
  EXPECT_EQ(faults_of(with_end("n: 10\n", "&x eval(n")),
            "6:25: 'eval(n', character 7: an operator or ')' is missing");
  EXPECT_EQ(faults_of(with_end("num_epochs: 10\n", "eval(1 + num_epoch)")),
            "6:25: 'eval(1 + num_epoch)', character 10: there is no variable 'num_epoch' (did you "
            "mean 'num_epochs'?)");
  EXPECT_EQ(faults_of(with_end("a: 1\nb: 2\n", "eval(zzzzzz)")),
            "7:21: 'eval(zzzzzz)', character 6: there is no variable 'zzzzzz'; there are a, b");
  EXPECT_EQ(faults_of(with_end("a: 1\n", "eval(m)")),
            "6:21: 'eval(m)', character 6: there is no variable 'm'; there are a");
  EXPECT_EQ(faults_of(with_end("", "eval(n)")),
            "5:21: 'eval(n)', character 6: there is no variable 'n': a recipe's variables are its "
            "top-level numbers, and here are none");
}

TEST(RecipeForms, VariablesOfTextsAreNoNumbers) {
  const auto rest = [](const std::string& name) {
    return ", not a number of at most 18 digits; only eval(" + name +
           ") by itself stands for what is no number";
  };
  EXPECT_EQ(faults_of(with_end("n: many\n", "eval(n * 2)")),
            "6:21: 'eval(n * 2)', character 6: 'n' is the text 'many'" + rest("n"));
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

TEST(RecipeForms, ABareNameInEvalGivesTheVariableAsItIs) {
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
              HasSubstr("'l' holds lists of lists, which eval() does not take"));
}

TEST(RecipeForms, ListsPutInByEvalAreCounted) {
  std::string text = "l: [" + std::string("a");
  for (int i = 0; i < 999; ++i) text += ", a";
  text += "]\nx_modifiers:\n";
  for (int i = 0; i < 200; ++i) text += "  - !ConstantKSModifier {params: eval(l)}\n";
  EXPECT_THAT(faults_of(text),
              HasSubstr("the lists that eval() puts in hold more than 100,000 entries"));
}

TEST(RecipeForms, CyclesAreNamedOnce) {
  EXPECT_EQ(faults_of(with_end("a: eval(b)\nb: eval(c + 1)\nc: eval(a)\n", "eval(a + b)")),
            "4:9: 'eval(a)', character 6: 'a' depends on itself: a -> b -> c -> a");
  EXPECT_EQ(faults_of(with_end("a: eval(a)\n", "3")),
            "2:9: 'eval(a)', character 6: 'a' depends on itself: a -> a");
}

TEST(RecipeForms, LongChainsOfVariablesAreRefused) {
  const auto chain = [](int length) {
    std::string top;
    for (int i = 0; i < length; ++i) top += fmt::format("v{}: eval(v{} + 1)\n", i, i + 1);
    return with_end(top + fmt::format("v{}: 0\n", length), "eval(v0)");
  };
  EXPECT_EQ(faults_of(chain(60)), "");
  EXPECT_THAT(faults_of(chain(70)),
              HasSubstr("more than 64 variables depend on each other in a row"));
}

TEST(RecipeForms, EvalBombsOverflow) {
  std::string top = "v0: 10\n";
  for (int i = 1; i < 60; ++i) top += fmt::format("v{}: eval(v{} * v{})\n", i, i - 1, i - 1);
  EXPECT_EQ(faults_of(with_end(top, "eval(v59)")),
            "8:13: 'eval(v5 * v5)', character 9: the exact result is too large or has too many "
            "digits");
}

TEST(RecipeForms, AnInlinedListHasNoVariables) {
  Diagnostics faults;
  const YamlDocument document = YamlDocument::parse(
      "run.yaml",
      "n: 3\nmodifiers:\n  - !EpochRangeModifier {start_epoch: 0, end_epoch: eval(2 * 3)}\n",
      &faults);
  const Recipe recipe = recipe_of_modifiers(document.root()["modifiers"], document, &faults);
  EXPECT_TRUE(faults.empty()) << faults.text();
  EXPECT_EQ(recipe.modifiers()[0]->window().end->text(), "6");
}

// --- Markdown ---

const char* kMarkdown = R"(<!--
Some licence: of
several lines.
-->

<!-- and more -->
---
num_epochs: 3
training_modifiers:
  - !EpochRangeModifier
    start_epoch: 0
    end_epoch: eval(num_epochs)
---

# A title

Text: with *stars, [brackets and a table.

---
more: of it
)";

TEST(RecipeForms, FrontMatterOfMarkdown) {
  Diagnostics faults;
  const Recipe recipe = parse_recipe("recipe.md", kMarkdown, &faults);
  EXPECT_TRUE(faults.empty()) << faults.text();
  ASSERT_THAT(tags_of(recipe), ElementsAre("EpochRangeModifier"));
  EXPECT_EQ(recipe.modifiers()[0]->location().text(), "recipe.md:10");
  EXPECT_EQ(recipe.source_sha256().size(), 64U);
}

TEST(RecipeForms, TheTextDecidesNotItsName) {
  for (const std::string file : {"recipe.md", "recipe.yaml", "recipe"}) {
    EXPECT_EQ(faults_in(file, kMarkdown), "") << file;
    EXPECT_EQ(faults_in(file, "---\nx_modifiers: []\n---\n\n# Title\n\nText\n"), "") << file;
    EXPECT_EQ(faults_in(file, "\n\n---\nx_modifiers: []\n---"), "") << file;
    EXPECT_EQ(faults_in(file, "\xEF\xBB\xBF---\r\nx_modifiers: []\r\n---\r\nText\r\n"), "") << file;
    EXPECT_EQ(faults_in(file, recipe_of({"!ConstantKSModifier {params: __ALL__}"})), "") << file;
  }
  EXPECT_EQ(faults_in("recipe.yaml", "---\nversion: 1.0.0\nmodifiers: []\n"), "");
}

TEST(RecipeForms, TheNameDecidesWhereTheTextDoesNot) {
  const std::string text = "---\nx_modifiers: []\n---\nnote: this may be both\n";
  EXPECT_EQ(faults_in("recipe.md", text), "");
  EXPECT_EQ(faults_in("recipe.yaml", text),
            "3:1: holds a second document ('---'): one file, one document");
}

TEST(RecipeForms, FaultsInFrontMatterHaveTheirPlaceInTheFile) {
  Diagnostics faults;
  parse_recipe("recipe.md",
               "<!-- a -->\n\n---\nx_modifiers:\n  - !EpochRangeModifier\n    start_epoch: 0\n    "
               "end_epoch: eval(1 / 0)\n  - !Wrong {}\n---\n",
               &faults);
  EXPECT_THAT(faults.text(),
              HasSubstr("recipe.md:7:23: error: 'eval(1 / 0)', character 8: this divides by zero\n"
                        "      end_epoch: eval(1 / 0)\n"
                        "                        ^\n"));
  EXPECT_THAT(faults.text(), HasSubstr("recipe.md:8:5: error: unknown modifier !Wrong"));
  EXPECT_EQ(faults_in("r.md", "---\nx_modifiers: [\n---\n").substr(0, 2), "3:");
}

TEST(RecipeForms, FrontMatterWithoutEnd) {
  EXPECT_EQ(faults_in("r.yaml", "\n<!-- a\n---\nx_modifiers: []\n---\n"),
            "2:1: this comment has no end ('-->')");
  EXPECT_EQ(faults_in("r.yaml", "<!-- a -->\n---\nx_modifiers: []\n"),
            "2:1: the front matter that begins here has no end (a second line '---')");
  EXPECT_EQ(faults_in("r.md", "---\nx_modifiers: []\n"),
            "1:1: the front matter that begins here has no end (a second line '---')");
  EXPECT_EQ(faults_in("r.md", "<!-- a -->\n# Title\n"),
            "2:1: behind the comment a recipe must begin with a line '---'");
  EXPECT_EQ(faults_in("r.md", "---\n---\n"), "0:0: is empty");
}

TEST(RecipeForms, KnowsARecipeFromARunFile) {
  const std::string path = std::filesystem::temp_directory_path() /
                           ("lockstep_forms_" + std::to_string(getpid()) + ".yaml");
  const auto reads_as_recipe = [&](const std::string& text) {
    files::write_atomically(path, text);
    return is_recipe(path);
  };
  EXPECT_TRUE(reads_as_recipe("version: 1.0.0\nmodifiers: []\n"));
  EXPECT_TRUE(reads_as_recipe("pruning_modifiers: []\n"));
  EXPECT_TRUE(reads_as_recipe(kMarkdown));
  EXPECT_TRUE(reads_as_recipe("train_stage:\n  pruning_modifiers: []\n"));
  EXPECT_FALSE(reads_as_recipe("run: {}\nmodifiers: []\n"));
  EXPECT_FALSE(reads_as_recipe("run: {}\n"));
  EXPECT_FALSE(reads_as_recipe("modifiers_lr: 0.1\ninfo: {modifiers_used: 3}\n"));
  EXPECT_FALSE(reads_as_recipe("[1]\n"));
  std::filesystem::remove(path);
}

// --- size ---

TEST(RecipeForms, SizesAreCapped) {
  std::vector<std::string> items(1001, "!ConstantKSModifier {params: __ALL__}");
  EXPECT_THAT(faults_of(recipe_of(items)), HasSubstr("more than 1000 modifiers"));
  items.pop_back();
  EXPECT_EQ(faults_of(recipe_of(items)), "");
  std::string patterns = "'re:a'";
  for (int i = 0; i < 100; ++i) patterns += ", 're:a'";
  EXPECT_THAT(faults_of(recipe_of(std::vector<std::string>(
                  10, "!ConstantKSModifier {params: [" + patterns + "]}"))),
              HasSubstr("1000 re:patterns"));
}

TEST(RecipeForms, EpochsOfFractionsFallOnTheRightStep) {
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

}  // namespace recipe_forms_test
}  // namespace lockstep::recal
