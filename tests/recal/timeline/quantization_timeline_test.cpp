#include <gmock/gmock.h>

#include "tests/recal/recipes.h"

namespace lockstep::recal {
namespace quantization_timeline_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string quantizing(const std::string& more = "start_epoch: 2") {
  return "!QuantizationModifier {" + more + "}";
}
std::string pruning(const std::string& more) {
  return "!GradualKSModifier {params: [head], init_sparsity: 0.1, final_sparsity: 0.8, "
         "start_epoch: 0, end_epoch: 3, update_frequency: 1" +
         more + "}";
}

struct Compiled {
  Recipe recipe;
  std::string faults;
  std::vector<std::string> warnings;
  std::optional<Timeline> timeline;
};

Compiled compile(const std::vector<std::string>& items, bool has_batch_norm = true) {
  Compiled done{.recipe = good_recipe(recipe_of(items))};
  Diagnostics faults;
  done.timeline = Timeline::compile(
      done.recipe,
      {.steps_per_epoch = 10,
       .params = small_network(),
       .layers = {{"blocks.0.conv", 0, has_batch_norm}, {"blocks.1.conv", 2}, {"head", 4}}},
      &faults);
  done.faults = brief(faults);
  done.warnings = done.timeline->warnings();
  return done;
}

TEST(Quantization, OfAllLayersFromItsStartOn) {
  const Compiled got = compile({quantizing()});
  EXPECT_EQ(got.faults, "");
  EXPECT_FALSE(got.timeline->quantization_at(19).on);
  const Quantization now = got.timeline->quantization_at(20);
  EXPECT_TRUE(now.on);
  EXPECT_TRUE(now.observers_on);
  EXPECT_FALSE(now.batch_norm_frozen);
  EXPECT_TRUE(now.per_channel);
  EXPECT_THAT(now.layers, ElementsAre(0, 1, 2));
}

TEST(Quantization, AMaskMustStandAtItsStartAndAfterwards) {
  // The gradual one lets go at step 30; what keeps zeros begins at 40, too late.
  const std::string late = "!ConstantKSModifier {params: [head], start_epoch: 4}";
  const std::string range = "!EpochRangeModifier {start_epoch: 0, end_epoch: 6}";
  EXPECT_THAT(
      compile({range, pruning(", leave_enabled: false"), late, quantizing("start_step: 35")})
          .faults,
      HasSubstr("head"));
  // From 30 on without a gap.
  const std::string at_once = "!ConstantKSModifier {params: [head], start_epoch: 3}";
  EXPECT_EQ(
      compile({range, pruning(", leave_enabled: false"), at_once, quantizing("start_step: 35")})
          .faults,
      "");
  // One that never acts changes nothing of what the gradual one keeps.
  const std::string early = "!ConstantKSModifier {params: [head], start_epoch: 0, end_epoch: 1}";
  EXPECT_EQ(compile({range, pruning(""), early, quantizing("start_step: 35")}).faults, "");
}

TEST(Quantization, RangesMustBeObservedOnce) {
  const auto at_start =
      compile({quantizing("start_step: 5, disable_quantization_observer_step: 5")});
  EXPECT_EQ(at_start.faults, "");
  EXPECT_TRUE(at_start.timeline->quantization_at(5).observers_on);
  EXPECT_FALSE(at_start.timeline->quantization_at(6).observers_on);
  EXPECT_THAT(at_start.timeline->warnings(),
              ::testing::Contains(HasSubstr("ranges of inputs are those of one step")));
  EXPECT_EQ(compile({quantizing("start_step: 5, disable_quantization_observer_step: 6")}).faults,
            "");
}

TEST(Quantization, LaterMoments) {
  const Compiled got =
      compile({quantizing("start_step: 20, disable_quantization_observer_epoch: 3, "
                          "freeze_bn_stats_step: 40, end_epoch: "
                          "-1, weights: per_tensor, submodules: [head, blocks.1.conv]")});
  EXPECT_EQ(got.faults, "");
  EXPECT_THAT(got.timeline->quantization_at(20).layers, ElementsAre(1, 2));
  EXPECT_FALSE(got.timeline->quantization_at(20).per_channel);
  EXPECT_TRUE(got.timeline->quantization_at(29).observers_on);
  EXPECT_FALSE(got.timeline->quantization_at(30).observers_on);
  EXPECT_FALSE(got.timeline->quantization_at(39).batch_norm_frozen);
  EXPECT_TRUE(got.timeline->quantization_at(40).batch_norm_frozen);
  EXPECT_THAT(compile({quantizing("start_epoch: 2, freeze_bn_stats_epoch: 1")}).faults,
              HasSubstr("QuantizationModifier has freeze_bn_stats at step 10, before its start at "
                        "step 20"));
}

TEST(Quantization, WhatItsTextMayNotHold) {
  const auto faults = [](const std::string& more) {
    return faults_of(recipe_of({quantizing(more)}));
  };
  EXPECT_EQ(
      faults("start_epoch: 0, end_epoch: 5"),
      "3:55: 'QuantizationModifier.end_epoch' may only be -1: once on, quantization stays on");
  EXPECT_THAT(faults("start_epoch: 0, end_step: 0"), HasSubstr("end_step' may only be -1"));
  EXPECT_THAT(faults("start_epoch: 0, calibration_steps: 5"),
              HasSubstr("unknown key 'calibration_steps' in 'QuantizationModifier'"));
  EXPECT_THAT(faults("start_epoch: 0, weights: per_row"),
              HasSubstr("must be one of per_channel, per_tensor, not 'per_row'"));
}

TEST(Quantization, KeysThatSayWhatHoldsAnyway) {
  const auto faults = [](const std::string& more) {
    return faults_of(recipe_of({quantizing("start_epoch: 0, " + more)}));
  };
  EXPECT_EQ(faults("quantize_conv_activations: False, quantize_linear_activations: 0"), "");
  EXPECT_EQ(faults("quantize_embeddings: 1, exclude_module_types: [LayerNorm, Tanh]"), "");
  EXPECT_EQ(faults("custom_quantizable_module_types: ['SiLU'], exclude_module_types: ['SiLU']"),
            "");
  EXPECT_THAT(faults("quantize_conv_activations: true"),
              HasSubstr("may only be false: outputs of layers are not rounded, their inputs are"));
  EXPECT_THAT(faults("exclude_module_types: [Conv2d]"), HasSubstr("in submodules"));
  EXPECT_THAT(faults("custom_quantizable_module_types: [SiLU]"),
              HasSubstr("only linear layers and convolutions can be quantized"));
  EXPECT_EQ(faults("model_fuse_fn_name: none, activation_bits: 8, weight_bits: 8.0, "
                   "reduce_range: no, tensorrt: False, model_fuse_fn_kwargs: {}, "
                   "num_calibration_steps: 0, exclude_batchnorm: true"),
            "");
  EXPECT_THAT(faults("activation_bits: 4"), HasSubstr("is 4, it may only be 8 or omitted"));
  EXPECT_THAT(faults("model_fuse_fn_name: conv_bn_relus"), HasSubstr("may only be no_fuse"));
  EXPECT_THAT(faults("tensorrt: true"), HasSubstr("inputs have a zero point"));
}

TEST(Quantization, TwoOfThem) {
  EXPECT_EQ(compile({quantizing(), quantizing("start_epoch: 3, submodules: [head]")}).faults,
            "4:5: QuantizationModifier and QuantizationModifier (r.yaml:3) both quantize 'head'");
  const Compiled apart = compile({quantizing("start_epoch: 1, submodules: [head]"),
                                  quantizing("start_epoch: 3, submodules: [blocks.0.conv]")});
  EXPECT_EQ(apart.faults, "");
  EXPECT_THAT(apart.timeline->quantization_at(29).layers, ElementsAre(2));
  EXPECT_THAT(apart.timeline->quantization_at(30).layers, ElementsAre(0, 2));
  EXPECT_EQ(compile({quantizing("start_epoch: 1, submodules: [head], weights: per_tensor"),
                     quantizing("start_epoch: 3, submodules: [blocks.0.conv]")})
                .faults,
            "4:5: QuantizationModifier and QuantizationModifier (r.yaml:3) must have the same "
            "weights: it applies to the whole model");
}

TEST(Quantization, OverPrunedWeightsNeedsTheirMask) {
  const std::string range = "!EpochRangeModifier {start_epoch: 0, end_epoch: 9}";
  const std::string released = pruning(", leave_enabled: false");
  const std::string late = quantizing("start_epoch: 5");
  EXPECT_EQ(compile({range, released, late}).faults,
            "5:5: QuantizationModifier quantizes 'head' from step 50 on, but GradualKSModifier "
            "(r.yaml:4) releases its mask at step 30, and zeros would come back: keep them with a "
            "ConstantKSModifier listed after it, or with leave_enabled: true");
  EXPECT_EQ(compile({range, pruning(""), late}).faults, "");
  EXPECT_EQ(compile({range, released, late, "!ConstantKSModifier {params: [head]}"}).faults, "");
  EXPECT_THAT(compile({range, released, late,
                       "!ConstantKSModifier {params: [head], start_epoch: 3, end_epoch: 7}"})
                  .faults,
              HasSubstr("ConstantKSModifier (r.yaml:6) releases its mask at step 70"));
  EXPECT_EQ(compile({range, released, late,
                     "!ConstantKSModifier {params: [head], start_epoch: 3, end_epoch: 9}"})
                .faults,
            "");
  EXPECT_EQ(
      compile({range, released, quantizing("start_epoch: 5, submodules: [blocks.0.conv]")}).faults,
      "");
}

TEST(Quantization, WhilePruningGoesOnWarns) {
  EXPECT_THAT(compile({pruning(""), quantizing("start_epoch: 2")}).warnings,
              ElementsAre("r.yaml:4: QuantizationModifier: quantizes 'head' from step 20 on, while "
                          "it is pruned until step 30: usually pruning comes before quantization"));
  EXPECT_THAT(compile({pruning(""), quantizing("start_epoch: 3"),
                       "!EpochRangeModifier {start_epoch: 0, end_epoch: 9}"})
                  .warnings,
              ElementsAre());
}

TEST(Quantization, FrozenStatisticsNeedBatchNormalisation) {
  const std::string freezing = quantizing("start_epoch: 0, freeze_bn_stats_epoch: 1");
  EXPECT_THAT(compile({freezing}, true).warnings, ElementsAre());
  EXPECT_THAT(
      compile({freezing}, false).warnings,
      ElementsAre("r.yaml:3: QuantizationModifier: freeze_bn_stats has no effect: the model "
                  "has no batch normalisation"));
}

TEST(Quantization, MomentsBehindTheRunsEndWarn) {
  const std::string range = "!EpochRangeModifier {start_epoch: 0, end_epoch: 3}";
  EXPECT_THAT(compile({range, quantizing("start_epoch: 3")}).warnings,
              ElementsAre("r.yaml:4: QuantizationModifier: never fires: it starts at step 30, the "
                          "run has 30 steps"));
  EXPECT_THAT(
      compile({range, quantizing("start_epoch: 1, disable_quantization_observer_epoch: 4")})
          .warnings,
      ElementsAre("r.yaml:4: QuantizationModifier: never comes to freeze_observers at step 40, the "
                  "run has 30 steps"));
}

TEST(Quantization, NeedsALayer) {
  EXPECT_THAT(compile_faults({quantizing()}),
              HasSubstr("the model has no layer to quantize: no linear layer or convolution"));
}

}  // namespace quantization_timeline_test
}  // namespace lockstep::recal
