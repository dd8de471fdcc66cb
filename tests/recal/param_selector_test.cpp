#include "recal/param_selector.h"

#include <gmock/gmock.h>

#include "recipes.h"

namespace lockstep::recal {
namespace {

using ::testing::ElementsAre;

/// Names of what `params: TEXT` selects.
std::vector<std::string> selected(const std::string& text, const std::vector<ParamInfo>& params) {
  Faults faults;
  const Recipe recipe = good_recipe(
      "version: 1.0.0\nmodifiers:\n  - !ConstantKSModifier\n    params: " + text + "\n");
  const Timeline timeline = Timeline::compile(
      recipe, {.steps_per_epoch = 1, .base_learning_rate = 0.1, .params = params}, &faults);
  EXPECT_TRUE(faults.empty()) << faults.text();
  return timeline.param_sets().empty() ? std::vector<std::string>()
                                       : timeline.param_sets()[0].names;
}

std::vector<std::string> of_small(const std::string& text) {
  return selected(text, small_network());
}

TEST(ParamSelector, AllMeansEveryPrunableParameter) {
  EXPECT_THAT(of_small("__ALL__"),
              ElementsAre("blocks.0.conv.weight", "blocks.1.conv.weight", "head.weight"));
  EXPECT_THAT(of_small("__ALL_PRUNABLE__"),
              ElementsAre("blocks.0.conv.weight", "blocks.1.conv.weight", "head.weight"));
  EXPECT_THAT(of_small("'__ALL__'"),
              ElementsAre("blocks.0.conv.weight", "blocks.1.conv.weight", "head.weight"));
}

TEST(ParamSelector, NamesMeanALayersWeightOrAParameter) {
  EXPECT_THAT(of_small("['blocks.1.conv']"), ElementsAre("blocks.1.conv.weight"));
  EXPECT_THAT(of_small("[blocks/1/conv]"), ElementsAre("blocks.1.conv.weight"));
  EXPECT_THAT(of_small("[head.weight, blocks/0/conv/weight]"),
              ElementsAre("blocks.0.conv.weight", "head.weight"));
  EXPECT_THAT(of_small("head"), ElementsAre("head.weight"));  // a scalar is a list of one
  EXPECT_THAT(of_small("[head, head.weight, head]"), ElementsAre("head.weight"));
}

TEST(ParamSelector, PatternsMatchFromTheStart) {
  EXPECT_THAT(of_small("['re:.*conv']"),
              ElementsAre("blocks.0.conv.weight", "blocks.1.conv.weight"));
  EXPECT_THAT(of_small("['re:.*/conv']"),
              ElementsAre("blocks.0.conv.weight", "blocks.1.conv.weight"));
  EXPECT_THAT(of_small("re:blocks\\.[1-9]"), ElementsAre("blocks.1.conv.weight"));
  EXPECT_THAT(of_small("['re:head$']"), ElementsAre("head.weight"));  // the layer's name
  EXPECT_THAT(of_small("['re:hea']"), ElementsAre("head.weight"));    // a prefix is enough
  EXPECT_THAT(of_small("['re:head\\.weight', 'blocks.0.conv']"),
              ElementsAre("blocks.0.conv.weight", "head.weight"));
}

TEST(ParamSelector, SlashedModelNames) {
  const std::vector<ParamInfo> params{{"mnist_net.blocks.conv0.conv.weight", true, 4},
                                      {"mnist_net.fc.weight", true, 4}};
  EXPECT_THAT(selected("['mnist_net/blocks/conv0/conv']", params),
              ElementsAre("mnist_net.blocks.conv0.conv.weight"));
  EXPECT_THAT(selected("['re:.*/conv']", params),
              ElementsAre("mnist_net.blocks.conv0.conv.weight"));
}

TEST(ParamSelector, APatternThatExplodesElsewhereDoesNot) {
  ParamInfo long_name{"", true, 1};
  long_name.name.append(2000, 'a').append(".weight");
  const std::vector<ParamInfo> params{long_name};
  Faults faults;
  const Recipe recipe =
      good_recipe(recipe_of({"!ConstantKSModifier {params: ['re:(a*)*(a*)*(a*)*b']}"}));
  Timeline::compile(recipe, {.steps_per_epoch = 1, .base_learning_rate = 0.1, .params = params},
                    &faults);
  EXPECT_EQ(faults.list().size(), 1U);  // no match, and at once
}

}  // namespace
}  // namespace lockstep::recal
