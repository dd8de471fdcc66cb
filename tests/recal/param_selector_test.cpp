#include "recal/schedule/param_selector.h"

#include <utility>

#include <gmock/gmock.h>

#include "recipes.h"

namespace lockstep::recal {
namespace param_selector_test {

using ::testing::ElementsAre;

/// Names of what `params: TEXT` selects.
std::vector<std::string> selected(const std::string& text, const std::vector<ParamInfo>& params) {
  Diagnostics faults;
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

/// A selector of `params: TEXT`.
ParamSelector selector(const std::string& text) {
  Diagnostics faults;
  const YamlDocument document = YamlDocument::parse("r.yaml", "params: " + text + "\n", &faults);
  ConfigReader in(document.root(), "", document, &faults);
  ParamSelector selector;
  EXPECT_TRUE(selector.read(&in, "params")) << faults.text();
  EXPECT_TRUE(faults.empty()) << faults.text();
  return selector;
}

/// Indexes in the small network of what is selected for trainability, and what is not matched.
std::pair<std::vector<int64_t>, std::string> any_of_small(const std::string& text) {
  Diagnostics unmatched;
  std::vector<int64_t> indexes = selector(text).resolve_any(small_network(), &unmatched);
  return {indexes, brief(unmatched)};
}

TEST(ParamSelector, AnyParameterIncludesBiases) {
  EXPECT_THAT(any_of_small("__ALL__").first, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(any_of_small("__ALL_PRUNABLE__").first, ElementsAre(0, 2, 4));
  EXPECT_THAT(any_of_small("[head]").first, ElementsAre(4, 5));
  EXPECT_THAT(any_of_small("[head.bias]").first, ElementsAre(5));
  EXPECT_THAT(any_of_small("['re:.*bias', head/weight]").first, ElementsAre(1, 3, 4, 5));
}

TEST(ParamSelector, WhatMatchesNothingIsNamedAndTheRestIsKept) {
  const auto [indexes, unmatched] = any_of_small("[heads, head.bias, 're:tail', zzzzzz]");
  EXPECT_THAT(indexes, ElementsAre(5));
  EXPECT_EQ(unmatched,
            "1:10: the model has no layer or parameter 'heads' (did you mean 'head'?)\n"
            "1:28: 're:tail' matches no parameter: a pattern must match from the start of a name; "
            "available: blocks.0.conv, blocks.1.conv, head\n"
            "1:39: the model has no layer or parameter 'zzzzzz'; available: blocks.0.conv, "
            "blocks.1.conv, head");
}

TEST(ParamSelector, PruningNamesWhatCannotBePruned) {
  Diagnostics unmatched;
  EXPECT_TRUE(selector("[head.bias]").resolve_prunable(small_network(), &unmatched).empty());
  EXPECT_EQ(brief(unmatched),
            "1:10: 'head.bias' names only what cannot be pruned (head.bias): weights of linear and "
            "convolution layers can: blocks.0.conv, blocks.1.conv, head");
}

/// Indexes of the layers that `submodules: TEXT` selects.
std::pair<std::vector<int64_t>, std::string> layers(const std::string& text) {
  const std::vector<LayerInfo> layers{{.name = "blocks.0.conv"},
                                      {.name = "blocks.0.shortcut"},
                                      {.name = "blocks.10.conv"},
                                      {.name = "head"}};
  Diagnostics unmatched;
  std::vector<int64_t> indexes = selector(text).resolve_layers(layers, &unmatched);
  return {indexes, brief(unmatched)};
}

TEST(ParamSelector, LayersAreMeantByNamesAboveThem) {
  EXPECT_THAT(layers("__ALL__").first, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(layers("blocks").first, ElementsAre(0, 1, 2));
  EXPECT_THAT(layers("[blocks.0]").first, ElementsAre(0, 1));
  EXPECT_THAT(layers("[blocks/1, head]").first, ElementsAre(3));
  EXPECT_THAT(layers("[blocks/10/conv]").first, ElementsAre(2));
  EXPECT_THAT(layers("['re:.*conv', head]").first, ElementsAre(0, 2, 3));
  EXPECT_THAT(layers("['re:blocks/1']").first, ElementsAre(2));
}

TEST(ParamSelector, LayersThatThereAreNot) {
  EXPECT_EQ(layers("[blocks/1]").second,
            "1:10: the model has no linear or convolution layer 'blocks/1'; available: "
            "blocks.0.conv, blocks.0.shortcut, blocks.10.conv, head");
  EXPECT_EQ(layers("[haed]").second,
            "1:10: the model has no linear or convolution layer 'haed' (did you mean 'head'?)");
  EXPECT_EQ(layers("['re:x']").second,
            "1:10: 're:x' matches no linear or convolution layer: a pattern must match from the "
            "start of a name; available: blocks.0.conv, blocks.0.shortcut, blocks.10.conv, head");
}

TEST(ParamSelector, ParamsThatAreNotStrictOnlyWarn) {
  Diagnostics faults;
  const Recipe recipe =
      good_recipe(recipe_of({"!ConstantKSModifier {params: [head, heads], params_strict: false}"}));
  const Timeline timeline = Timeline::compile(
      recipe, {.steps_per_epoch = 1, .base_learning_rate = 0.1, .params = small_network()},
      &faults);
  EXPECT_TRUE(faults.empty()) << faults.text();
  ASSERT_FALSE(timeline.warnings().empty());
  EXPECT_EQ(timeline.warnings()[0],
            "r.yaml:3: ConstantKSModifier: the model has no layer or parameter 'heads' (did you "
            "mean 'head'?)");
  EXPECT_THAT(timeline.param_sets()[0].names, ElementsAre("head.weight"));
}

// (a+)+$ on a name of a's and one other letter: an engine with backtracking tries every way to cut
// the a's into groups. Each further a doubles that, so a difference of six shows it without a long
// wait; at 40 it would take weeks. It would take 2^10000 steps here, so that this test would never
// end.
TEST(ParamSelector, APatternThatExplodesElsewhereDoesNot) {
  std::vector<ParamInfo> params{{std::string(10'000, 'a').append("b.weight"), true, 1}};
  Diagnostics unmatched;
  EXPECT_THAT(selector("['re:(a+)+$']").resolve_any(params, &unmatched), ::testing::IsEmpty());
  EXPECT_EQ(unmatched.list().size(), 1U);
}

TEST(ParamSelector, TwoIdiomsMeanAllNamesWithout) {
  const std::vector<ParamInfo> params{
      {"body.conv.weight", true, 1}, {"head.dfl.weight", true, 1}, {"head.out.weight", true, 1}};
  const auto chosen = [&](const std::string& pattern) {
    Diagnostics unmatched;
    return selector("['re:" + pattern + "']").resolve_prunable(params, &unmatched);
  };
  using ::testing::ElementsAre;
  for (const char* idiom : {"^((?!dfl).)*$", "((?!dfl).)*$", "^(?:(?!dfl).)*$", "^(?!.*dfl).*$",
                            "(?!.*dfl).*", "^(?!.*dfl)"})
    EXPECT_THAT(chosen(idiom), ElementsAre(0, 2)) << idiom;
  EXPECT_THAT(chosen("^((?!dfl|conv).)*$"), ElementsAre(2));
  EXPECT_THAT(chosen("^((?!head.dfl).)*$"), ElementsAre(0, 2));
  EXPECT_THAT(chosen("^((?!head/dfl).)*$"), ElementsAre(0, 2));  // in either spelling
  EXPECT_THAT(chosen("^((?!weight).)*$"), ElementsAre());        // its layer does not bring it back
  const auto fault = [](const std::string& pattern) {
    return faults_of(recipe_of({"!ConstantKSModifier {params: ['re:" + pattern + "']}"}));
  };
  EXPECT_EQ(fault("^((?!x*).)*$"),
            "3:35: 're:^((?!x*).)*$' excludes every name: it selects nothing");
  for (const char* other : {"((?!dfl).)*", "(?<!a)b", "a(?!b)", "^((?!a(?=b)).)*$"})
    EXPECT_THAT(fault(other), ::testing::HasSubstr("look-ahead and look-behind are not supported"))
        << other;
}

TEST(ParamSelector, LongAndLargePatternsAreRefused) {
  const auto faults_of_pattern = [](const std::string& regex) {
    return faults_of(recipe_of({"!ConstantKSModifier {params: ['re:" + regex + "']}"}));
  };
  EXPECT_EQ(faults_of_pattern(std::string(997, 'a')), "");
  EXPECT_EQ(faults_of_pattern(std::string(998, 'a')),
            "3:35: a pattern may have at most 1000 bytes, this one has 1001");
  EXPECT_EQ(faults_of_pattern("((a{100}){100}){100}"),
            "3:35: 're:((a{100}){100}){100}' is not a regular expression (RE2): invalid repetition "
            "size: {100}");
  EXPECT_EQ(faults_of_pattern("(\\pL{30}){30}"),
            "3:35: 're:(\\pL{30}){30}' is not a regular expression (RE2): pattern too large - "
            "compile failed");
}

}  // namespace param_selector_test
}  // namespace lockstep::recal
