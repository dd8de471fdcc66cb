#include "recal/recipe/recipe_reader.h"

#include <filesystem>

#include <gmock/gmock.h>

#include "base/files/files.h"
#include "tests/recal/recipes.h"

namespace lockstep::recal {
namespace recal_options_test {

using ::testing::HasSubstr;

class RecalOptions : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              (std::string("lockstep_recipe_") + std::to_string(getpid()));
    files::make_folders(folder_ / "recipes");
    files::write_atomically(folder_ / "recipes/good.yaml",
                            recipe_of({"!EpochRangeModifier {start_epoch: 0, end_epoch: 3}"}));
    files::write_atomically(folder_ / "recipes/bad.yaml",
                            recipe_of({"!EpochRangeModifier {start_epoch: 0}"}));
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  /// Reads the recipe that a run file of this text in folder_ names; its faults are in faults_.
  Recipe read(const std::string& run_file) {
    const YamlDocument document =
        YamlDocument::parse((folder_ / "run.yaml").string(), run_file, &faults_);
    ConfigReader in(document.root(), "", document, &faults_);
    Recipe recipe = read_recipe(&in);
    in.done();
    return recipe;
  }

  std::filesystem::path folder_;
  Diagnostics faults_;
};

TEST_F(RecalOptions, AFileBesideTheRunFile) {
  EXPECT_EQ(read("recipe: recipes/good.yaml\n").modifiers().size(), 1U);
  EXPECT_TRUE(faults_.empty()) << faults_.text();
}

TEST_F(RecalOptions, AnAbsoluteFile) {
  EXPECT_EQ(read("recipe: " + (folder_ / "recipes/good.yaml").string() + "\n").file(),
            (folder_ / "recipes/good.yaml").string());
  EXPECT_TRUE(faults_.empty()) << faults_.text();
}

/// The name is relative: the working folder and the run file's folder have different files of it.
TEST_F(RecalOptions, AFileOfTheWorkingFolderComesBeforeOneBesideTheRunFile) {
  const std::filesystem::path before = std::filesystem::current_path();
  const std::filesystem::path working = folder_ / "working";
  std::filesystem::create_directories(working / "recipes");
  files::write_atomically(working / "recipes/good.yaml",
                          "modifiers: [!EpochRangeModifier {start_epoch: 0, end_epoch: 7}]\n");
  std::filesystem::current_path(working);
  const Recipe recipe = read("recipe: recipes/good.yaml\n");
  std::filesystem::current_path(before);
  EXPECT_EQ(recipe.file(), "recipes/good.yaml");
  EXPECT_TRUE(faults_.empty()) << faults_.text();
  EXPECT_EQ(recipe.modifiers().at(0)->window().end->text(), "7");
}

TEST_F(RecalOptions, OneStageOfAFile) {
  files::write_atomically(
      folder_ / "recipes/staged.yaml",
      "a_stage:\n  x_modifiers: [!EpochRangeModifier {start_epoch: 0, end_epoch: "
      "3}]\nb_stage:\n  x_modifiers: [!EpochRangeModifier {start_epoch: 0, "
      "end_epoch: 2}]\n");
  EXPECT_EQ(read("recipe: recipes/staged.yaml\n").modifiers().size(), 2U);
  const Recipe one = read("recipe: recipes/staged.yaml\nrecipe_stage: b_stage\n");
  EXPECT_TRUE(faults_.empty()) << faults_.text();
  ASSERT_EQ(one.modifiers().size(), 1U);
  EXPECT_EQ(one.modifiers()[0]->window().end->text(), "2");
  read("recipe: recipes/staged.yaml\nrecipe_stage: c\n");
  EXPECT_THAT(faults_.text(), HasSubstr("unknown stage 'c'"));
}

TEST_F(RecalOptions, AStageNeedsAFile) {
  read("recipe_stage: a\nmodifiers: []\n");
  EXPECT_THAT(faults_.text(), HasSubstr("run.yaml:1:15: error: 'recipe_stage' needs 'recipe'"));
}

TEST_F(RecalOptions, AnInlinedRecipe) {
  const Recipe recipe =
      read("modifiers:\n  - !EpochRangeModifier {start_epoch: 0, end_epoch: 3}\n");
  EXPECT_TRUE(faults_.empty()) << faults_.text();
  ASSERT_EQ(recipe.modifiers().size(), 1U);
  EXPECT_EQ(recipe.modifiers()[0]->location().line, 2);
}

TEST_F(RecalOptions, AMarkdownFile) {
  files::write_atomically(folder_ / "recipes/good.md",
                          "<!-- c -->\n---\nn: 3\ntraining_modifiers:\n  - !EpochRangeModifier "
                          "{start_epoch: 0, end_epoch: eval(n)}\n---\n# Title\n");
  EXPECT_EQ(read("recipe: recipes/good.md\n").modifiers().size(), 1U);
  EXPECT_TRUE(faults_.empty()) << faults_.text();
}

TEST_F(RecalOptions, AnInlinedRecipeHasNoVariables) {
  read("n: 3\nmodifiers:\n  - !EpochRangeModifier {start_epoch: 0, end_epoch: eval(2 * n)}\n");
  EXPECT_EQ(brief(faults_),
            "3:62: 'eval(2 * n)', character 10: unknown variable 'n': a recipe's variables are its "
            "top-level numbers, and this recipe has none\n"
            "1:1: unknown key 'n'; available: recipe, recipe_stage, modifiers");
}

TEST_F(RecalOptions, NoRecipeIsAnEmptyOne) {
  EXPECT_TRUE(read("{}\n").empty());
  EXPECT_TRUE(faults_.empty()) << faults_.text();
}

TEST_F(RecalOptions, BothAreRefused) {
  read("recipe: recipes/good.yaml\nmodifiers: []\n");
  EXPECT_EQ(brief(faults_), "2:12: 'recipe' and 'modifiers' are both given: keep one of them");
}

TEST_F(RecalOptions, AMissingFileIsNamedWithBothPlaces) {
  read("recipe: recipes/missing.yaml\n");
  EXPECT_EQ(brief(faults_), "1:9: no recipe file 'recipes/missing.yaml' (nor '" +
                                (folder_ / "recipes/missing.yaml").string() + "')");
  Diagnostics none;
  std::swap(faults_, none);
  read("recipe: recipes\n");  // a folder
  EXPECT_THAT(brief(faults_), HasSubstr("no recipe file 'recipes'"));
}

TEST_F(RecalOptions, FaultsOfTheRecipeNameItsFile) {
  read("recipe: recipes/bad.yaml\n");
  ASSERT_EQ(faults_.list().size(), 1U) << faults_.text();
  EXPECT_EQ(faults_.list()[0].file, (folder_ / "recipes/bad.yaml").string());
  EXPECT_EQ(faults_.list()[0].line, 3);
}

}  // namespace recal_options_test
}  // namespace lockstep::recal
