#include "recal/recipe/recipe_reader.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "tests/recal/recipes.h"

namespace lockstep::recal {
namespace recipe_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> tags_of(const Recipe& recipe) {
  std::vector<std::string> tags;
  for (const auto& modifier : recipe.modifiers()) tags.emplace_back(modifier->tag());
  return tags;
}

TEST(Recipe, LoadsBlockStyleWithAnyIndent) {
  const Recipe recipe = good_recipe(R"(version: 1.0.0

modifiers:
    - !EpochRangeModifier
        start_epoch: 0.0
        end_epoch: 25.0

    - !GradualKSModifier
      params: __ALL__
      init_sparsity: 0.05
      final_sparsity: 0.8
      start_epoch: 5.0
      end_epoch: 20.0
      update_frequency: 1.0
)");
  EXPECT_THAT(tags_of(recipe), ElementsAre("EpochRangeModifier", "GradualKSModifier"));
  EXPECT_EQ(recipe.modifiers()[1]->location().text(), "r.yaml:8");
  EXPECT_EQ(recipe.source_sha256().size(), 64U);
}

TEST(Recipe, LoadsEveryModifierOfTheGrammarThatThereIs) {
  const Recipe recipe = good_recipe(recipe_of({
      "!EpochRangeModifier {start_epoch: 0.0, end_epoch: 25.0}",
      "!ConstantKSModifier {params: __ALL__}",
      "!GradualKSModifier {params: ['blocks.1.conv'], init_sparsity: 0.05, final_sparsity: 0.8, "
      "start_epoch: 5.0, end_epoch: 20.0, update_frequency: 1.0}",
      "!SetLearningRateModifier {start_epoch: 5.0, learning_rate: 0.1}",
      "!LearningRateModifier {start_epoch: 0.0, end_epoch: 25.0, lr_class: MultiStepLR, lr_kwargs: "
      "{gamma: 0.9, milestones: [2.0, 5.5, 10.0]}, init_lr: 0.1}",
  }));
  EXPECT_THAT(tags_of(recipe),
              ElementsAre("EpochRangeModifier", "ConstantKSModifier", "GradualKSModifier",
                          "SetLearningRateModifier", "LearningRateModifier"));
}

TEST(Recipe, KnowsWhetherItPrunes) {
  EXPECT_FALSE(Recipe().prunes());
  const std::string end = "!EpochRangeModifier {start_epoch: 0, end_epoch: 3}";
  EXPECT_FALSE(
      good_recipe(recipe_of({end, "!SetLearningRateModifier {start_epoch: 1, learning_rate: 0.1}"}))
          .prunes());
  EXPECT_TRUE(good_recipe(recipe_of({end, "!ConstantKSModifier {params: __ALL__}"})).prunes());
  EXPECT_TRUE(
      good_recipe(
          recipe_of({end,
                     "!GMPruningModifier {params: __ALL__, init_sparsity: 0.1, "
                     "final_sparsity: 0.8, start_epoch: 0, end_epoch: 2, update_frequency: 1}"}))
          .prunes());
}

TEST(Recipe, AcceptsWhatYamlCallsTheSame) {
  good_recipe(recipe_of(
      {"!EpochRangeModifier {start_epoch: '0.5', end_epoch: \"25\"}"}));  // quoted numbers
  good_recipe(recipe_of(
      {"!EpochRangeModifier {'start_epoch': 0, end_epoch: 5.}"}));  // quoted key, bare point
  good_recipe(
      recipe_of({"!LearningRateModifier {start_epoch: 0, end_epoch: 2.5e1, lr_class: 'StepLR', "
                 "lr_kwargs: {'gamma': 0.9, step: 2.0}}"}));
  good_recipe(
      recipe_of({"!GradualKSModifier {params: 're:.*conv', init_sparsity: 0, final_sparsity: 0.5, "
                 "start_epoch: 0, end_epoch: 1, update_frequency: 1, leave_enabled: True}"}));
  good_recipe(R"({"version": "1.0.0", "modifiers": []})");  // JSON
}

TEST(Recipe, RefusesAMissingFile) {
  Diagnostics faults;
  try {
    load_recipe("/nonexistent/recipe.yaml", &faults);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kInputMissing);
    EXPECT_THAT(error.what(), HasSubstr("/nonexistent/recipe.yaml"));
  }
}

TEST(Recipe, TheShippedOneLoadsAndReachesItsSparsity) {
  Diagnostics faults;
  const Recipe recipe =
      load_recipe(LOCKSTEP_SOURCE_DIR "/configs/recipes/digits_prune.yaml", &faults);
  ASSERT_TRUE(faults.empty()) << faults.text();
  const Timeline timeline = Timeline::compile(
      recipe, {.steps_per_epoch = 23, .base_learning_rate = 0.1, .params = small_network()},
      &faults);
  ASSERT_TRUE(faults.empty()) << faults.text();
  EXPECT_TRUE(timeline.warnings().empty()) << timeline.warnings().front();
  EXPECT_GE(timeline.target_sparsity_at(timeline.total_steps().value()), 0.8);
}

}  // namespace recipe_test
}  // namespace lockstep::recal
