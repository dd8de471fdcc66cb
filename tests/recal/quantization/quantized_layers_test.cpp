// Which layers a QuantizationModifier quantizes, and what their schemes may say.
#include <gmock/gmock.h>

#include "recal/recipe/recipe_reader.h"
#include "recal/schedule/timeline_views.h"
#include "tests/recal/recipes.h"

namespace lockstep::recal {
namespace quantized_layers_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// 0 stem (Conv2d), 1 blocks.1.conv (Conv2d), 2 blocks.10.fc (Linear), 3 head (Linear)
TimelineInputs inputs() {
  return {.steps_per_epoch = 10,
          .params = std::vector<ParamInfo>{{"stem.weight", true, 72, {8, 1, 3, 3}},
                                           {"blocks.1.conv.weight", true, 576, {8, 8, 3, 3}},
                                           {"blocks.1.norm.scale", false, 8, {8}},
                                           {"blocks.10.fc.weight", true, 64, {8, 8}},
                                           {"head.weight", true, 80, {10, 8}}},
          .layers = {{"stem", 0}, {"blocks.1.conv", 1}, {"blocks.10.fc", 3}, {"head", 4}}};
}

struct Got {
  std::vector<int64_t> layers;
  bool per_channel = true;
  std::string faults;
  std::vector<std::string> warnings;
};

/// `{start_epoch: 0, KEYS}` compiled with the model, or without one.
Got quantized(const std::string& keys, bool has_model = true) {
  Diagnostics faults;
  const Recipe recipe = parse_recipe(
      "r.yaml", recipe_of({"!QuantizationModifier {start_epoch: 0, " + keys + "}"}), &faults);
  TimelineInputs given = inputs();
  if (!has_model) given = {.steps_per_epoch = 10, .layers = {}};
  if (!faults.empty()) return {.faults = brief(faults)};
  const Timeline timeline = Timeline::compile(recipe, given, &faults);
  if (!faults.empty()) return {.faults = brief(faults)};
  const Quantization now = timeline.quantization_at(0);
  return {now.layers, now.per_channel, "", timeline.warnings()};
}
std::string refusal(const std::string& keys) { return quantized(keys).faults; }

TEST(QuantizedLayers, IgnoresNamesWhatIsBelowThemPatternsAndClasses) {
  EXPECT_THAT(quantized("ignore: [head]").layers, ElementsAre(0, 1, 2));
  EXPECT_THAT(quantized("ignore: head").layers, ElementsAre(0, 1, 2));
  EXPECT_THAT(quantized("ignore: [blocks]").layers, ElementsAre(0, 3));
  EXPECT_THAT(quantized("ignore: [blocks.1]").layers, ElementsAre(0, 2, 3));  // not blocks.10
  EXPECT_THAT(quantized("ignore: [blocks/1/conv]").layers, ElementsAre(0, 2, 3));
  EXPECT_THAT(quantized("ignore: ['re:blocks.*']").layers, ElementsAre(0, 3));
  EXPECT_THAT(quantized("ignore: [Linear]").layers, ElementsAre(0, 1));
  EXPECT_THAT(quantized("ignore: [Conv2d, head]").layers, ElementsAre(2));
  EXPECT_THAT(quantized("ignore: [Conv3d, Embedding, blocks.1.norm]").layers,
              ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(quantized("ignore: []").layers, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(quantized("submodules: [blocks], ignore: [Linear]").layers, ElementsAre(1));
  EXPECT_TRUE(quantized("ignore: [head]").per_channel);
}

TEST(QuantizedLayers, NamesThatMeanNothingAreRefused) {
  EXPECT_THAT(refusal("ignore: [haed]"),
              HasSubstr("the model has nothing named 'haed' (did you mean 'head'?)"));
  EXPECT_THAT(refusal("scheme_overrides: {sections: default}"),
              HasSubstr("'sections'; its layers are stem, blocks.1.conv, blocks.10.fc, head"));
  const Got lax = quantized("ignore: [haed], strict: false");
  EXPECT_EQ(lax.faults, "");
  EXPECT_THAT(lax.warnings, ElementsAre(HasSubstr("nothing named 'haed'")));
  EXPECT_THAT(refusal("ignore: ['re:(']"), HasSubstr("is not a regular expression"));
  EXPECT_THAT(refusal("ignore: [ConvBnReLU2d]"), HasSubstr("is not a class of layers"));
  EXPECT_THAT(refusal("ignore: {a: 1}"), HasSubstr("'QuantizationModifier.ignore' must be a list"));
  EXPECT_THAT(refusal("ignore: [Linear, Conv2d]"), HasSubstr("no layer is quantized"));
}

TEST(QuantizedLayers, ASchemeSaysHowAndItsDefaultsAreSparseMLs) {
  EXPECT_FALSE(quantized("scheme: {}").per_channel);
  EXPECT_FALSE(quantized("scheme: default").per_channel);
  EXPECT_FALSE(quantized("scheme: deepsparse").per_channel);
  EXPECT_FALSE(quantized("scheme_overrides: {Embedding: null}").per_channel);
  EXPECT_TRUE(quantized("scheme: {weights: {symmetric: true, strategy: channel}}").per_channel);
  EXPECT_TRUE(quantized("weights: per_channel, scheme_overrides: {Embedding: null}").per_channel);
  EXPECT_THAT(refusal("scheme: {weights: {num_bits: 8}}"),
              HasSubstr("'QuantizationModifier.scheme.weights.symmetric' is false by default, it "
                        "must be true: weights have no zero point"));
  EXPECT_THAT(refusal("scheme: {input_activations: {symmetric: true}}"),
              HasSubstr("scheme.input_activations.symmetric' is true, it must be false"));
  EXPECT_THAT(refusal("scheme: {input_activations: null}"),
              HasSubstr("'QuantizationModifier.scheme.input_activations' is null: a layer is "
                        "quantized in both its weights and its inputs, or not at all"));
  EXPECT_THAT(refusal("scheme: {weights: {symmetric: true, num_bits: 4}}"),
              HasSubstr("scheme.weights.num_bits' is 4, it must be 8"));
  EXPECT_THAT(refusal("scheme: {output_activations: {}}"),
              HasSubstr("scheme.output_activations' must be null"));
  EXPECT_THAT(refusal("scheme: tensorrt"), HasSubstr("rounds inputs symmetrically"));
  EXPECT_THAT(refusal("scheme: deepsprase"), HasSubstr("one of default, deepsparse, tensorrt"));
  EXPECT_THAT(refusal("scheme: {weight: {}}"), HasSubstr("did you mean 'weights'?"));
  EXPECT_THAT(refusal("weights: per_channel, scheme: {}"), HasSubstr("keep one of them"));
}

TEST(QuantizedLayers, TheNarrowestOverrideHolds) {
  const std::string off = "{weights: null, input_activations: null}";
  EXPECT_THAT(quantized("scheme_overrides: {blocks: " + off + ", blocks.10: default}").layers,
              ElementsAre(0, 2, 3));
  EXPECT_THAT(quantized("scheme_overrides: {blocks.10: default, blocks: " + off + "}").layers,
              ElementsAre(0, 2, 3));
  // A name goes before a class.
  EXPECT_THAT(quantized("scheme_overrides: {Linear: " + off + ", head: default}").layers,
              ElementsAre(0, 1, 3));
  // Unsupported settings do no harm if no layer uses them.
  const std::string four = "{weights: {num_bits: 4, symmetric: true}}";
  EXPECT_THAT(quantized("scheme_overrides: {Conv3d: " + four + ", Embedding: " + four + "}").layers,
              ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(quantized("ignore: [head], scheme_overrides: {head: " + four + "}").layers,
              ElementsAre(0, 1, 2));
  EXPECT_THAT(refusal("scheme_overrides: {head: " + four + "}"),
              HasSubstr("'QuantizationModifier.scheme_overrides.head.weights.num_bits' is 4"));
  EXPECT_THAT(refusal("scheme_overrides: {head: {weights: {symmetric: true, strategy: channel}}}"),
              HasSubstr("the weights of 'stem' have the strategy tensor, those of 'head' have "
                        "channel: a model has a single strategy"));
}

std::string group(const std::string& targets, const std::string& more = "") {
  return "{targets: " + targets +
         ", weights: {num_bits: 8}, input_activations: {symmetric: false}" + more + "}";
}

TEST(QuantizedLayers, GroupsQuantizeWhatTheyNameAndNothingElse) {
  EXPECT_THAT(quantized("config_groups: {a: " + group("[Linear]") + "}").layers, ElementsAre(2, 3));
  EXPECT_THAT(quantized("ignore: [head], config_groups: {a: " + group("[Linear]") +
                        ", b: " + group("[stem]") + "}")
                  .layers,
              ElementsAre(0, 2));
  EXPECT_FALSE(quantized("config_groups: {a: " + group("[Linear]") + "}").per_channel);
  EXPECT_THAT(refusal("config_groups: {a: {targets: [Linear], weights: {}}}"),
              HasSubstr("config_groups.a.input_activations' is missing: a layer is quantized in "
                        "both"));
  EXPECT_THAT(
      refusal("config_groups: {a: {targets: [Linear], weights: {}, input_activations: {}}}"),
      HasSubstr("input_activations.symmetric' is true by default, it must be false"));
  EXPECT_THAT(refusal("config_groups: {a: {weights: {}}}"), HasSubstr("targets' is required"));
  EXPECT_THAT(refusal("config_groups: {a: " + group("[Embedding]") + "}"),
              HasSubstr("no layer is quantized"));
  EXPECT_THAT(refusal("config_groups: {}"), HasSubstr("must be a map of groups"));
  EXPECT_THAT(refusal("scheme: {}, config_groups: {a: " + group("[Linear]") + "}"),
              HasSubstr("keep one of them"));
}

TEST(QuantizedLayers, WhatAPartMaySay) {
  const auto weights = [](const std::string& more) {
    return refusal("scheme: {weights: {symmetric: true, " + more + "}}");
  };
  EXPECT_EQ(weights("dynamic: false, group_size: null, observer: minmax, observer_kwargs: {}, "
                    "kwargs: {reduce_range: false, averaging_constant: 0.01}, actorder: false"),
            "");
  EXPECT_THAT(weights("group_size: 128"), HasSubstr("group_size' is 128, it must be null"));
  EXPECT_THAT(weights("strategy: group"), HasSubstr("tensor (one scale) or channel"));
  EXPECT_THAT(weights("type: float"), HasSubstr("type' is float, it must be int"));
  EXPECT_THAT(weights("dynamic: true"), HasSubstr("moving average"));
  EXPECT_THAT(weights("observer: mse"), HasSubstr("observer' is mse, it must be minmax"));
  EXPECT_THAT(weights("kwargs: {reduce_range: true}"),
              HasSubstr("kwargs.reduce_range' is not supported"));
  EXPECT_THAT(weights("bits: 8"), HasSubstr("unknown key 'bits'"));
}

TEST(QuantizedLayers, WithoutAModelWhatAnyLayerCouldHaveIsRefused) {
  const auto plan = [](const std::string& keys) { return quantized(keys, false).faults; };
  const std::string four = "{weights: {num_bits: 4, symmetric: true}}";
  EXPECT_EQ(plan("ignore: [anything, GELU]"), "");
  EXPECT_EQ(plan("scheme_overrides: {Embedding: " + four + "}"), "");
  EXPECT_THAT(plan("scheme_overrides: {Linear: " + four + "}"), HasSubstr("num_bits' is 4"));
  EXPECT_THAT(plan("scheme_overrides: {anything: " + four + "}"), HasSubstr("num_bits' is 4"));
  EXPECT_THAT(plan("config_groups: {a: " + group("[Embedding]") + "}"),
              HasSubstr("no layer is quantized"));
}

}  // namespace quantized_layers_test
}  // namespace lockstep::recal
