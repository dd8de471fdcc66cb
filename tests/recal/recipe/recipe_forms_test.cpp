// The forms in which a recipe may come: lists, Markdown.
#include <filesystem>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "base/files/files.h"
#include "recal/recipe/recipe_reader.h"
#include "tests/recal/recipe/small_recipes.h"

namespace lockstep::recal {
namespace recipe_forms_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tests::end_of;
using tests::tags_of;
using tests::with_end;

/// Diagnostics of a text in a file of this name.
std::string faults_in(const std::string& file, const std::string& text) {
  Diagnostics faults;
  parse_recipe(file, text, &faults);
  return brief(faults);
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
                ElementsAre("r.yaml: the recipe has no version: it is read as 1.0.0"));
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
              HasSubstr("2:1: unknown key 'modifiers_x': a recipe contains"));
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
      ": a recipe contains 'version', variables (numbers, strings, lists of them), lists of "
      "modifiers, whose names contain 'modifiers', or stages, which are maps of such lists";
  EXPECT_EQ(faults_of("stage:\n  pruning_modifiers: []\nx_modifiers: []\n"),
            "3:1: 'x_modifiers' is outside the stages (stage): move it into one of them");
  EXPECT_EQ(faults_of("pruning: [!ConstantKSModifier {params: __ALL__}]\nx_modifiers: []\n"),
            "1:1: unknown key 'pruning'" + rule);
  EXPECT_EQ(faults_of("a: {b: {c: 1}}\nx_modifiers: []\n"), "1:1: unknown key 'a'" + rule);
  EXPECT_EQ(faults_of("modifer: 3\nx_modifiers: []\n"),
            "1:1: unknown key 'modifer' (did you mean 'modifiers'?)");
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
            "3:1: contains a second document ('---'); one document per file is allowed");
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
            "2:1: after the comment a recipe must begin with a line '---'");
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

}  // namespace recipe_forms_test
}  // namespace lockstep::recal
