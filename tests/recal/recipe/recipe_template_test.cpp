#include "recal/recipe/recipe_template.h"

#include <regex>
#include <sstream>

#include <gmock/gmock.h>

#include "tests/recal/recipes.h"

namespace lockstep::recal {
namespace recipe_template_test {

/// Makes text of the lines that are keys or items behind "# ".
std::string without_comment_signs(const std::string& text) {
  const std::regex commented("^( +)# (- !| *[a-z_]+: )");
  std::istringstream lines(text);
  std::string out;
  for (std::string line; std::getline(lines, line);)
    out += std::regex_replace(line, commented, "$1$2") + "\n";
  return out;
}

TEST(RecipeTemplate, LoadsWithoutAWarning) {
  const Timeline timeline = compiled(recipe_template(), 10);
  EXPECT_THAT(timeline.warnings(), ::testing::IsEmpty());
  EXPECT_EQ(timeline.modifiers().size(), 3U);
  EXPECT_EQ(timeline.total_steps(), 300);
}

TEST(RecipeTemplate, LoadsWithEverythingThatItOffers) {
  const std::string text = without_comment_signs(recipe_template());
  const Recipe recipe = good_recipe(text);
  EXPECT_EQ(recipe.modifiers().size(), 7U) << text;
  Diagnostics faults;
  const Timeline timeline =
      Timeline::compile(recipe,
                        {.steps_per_epoch = 10,
                         .params = small_network(),
                         .layers = {{"blocks.0.conv", 0}, {"blocks.1.conv", 2}, {"head", 4}}},
                        &faults);
  EXPECT_TRUE(faults.empty()) << faults.text();
}

}  // namespace recipe_template_test
}  // namespace lockstep::recal
