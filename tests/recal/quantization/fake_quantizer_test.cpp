#include "recal/quantization/fake_quantizer.h"

#include <cmath>
#include <limits>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "dist/communicator.h"
#include "tests/support/thread_world.h"

namespace lockstep::recal {
namespace fake_quantizer_test {

std::vector<LayerInfo> two_layers() {
  return {{.name = "blocks.0.conv", .weight_param = 0}, {.name = "head", .weight_param = 2}};
}

/// A quantizer of two layers, both on, alone in its world.
struct Alone {
  explicit Alone(bool per_output = true, bool observers_on = true) {
    quantizer.configure({0, 1}, per_output, observers_on);
  }
  /// One training step whose layer 0 sees these values.
  at::Tensor step(const at::Tensor& values, bool counted = true) {
    at::Tensor seen = quantizer.input(0, values);
    quantizer.end_step(world, counted);
    return seen;
  }
  InputRanges::Range range(int64_t layer = 0) const { return quantizer.view(layer).input_range; }

  dist::SelfCommunicator world;
  FakeQuantizer quantizer{two_layers()};
};

TEST(FakeQuantizer, ALayerThatIsOffPassesItsTensorsOn) {
  Alone alone;
  alone.quantizer.configure({1}, true, true);
  const at::Tensor weight = at::randn({4, 3}), input = at::randn({2, 3});
  EXPECT_TRUE(alone.quantizer.weight(0, weight).is_same(weight));
  EXPECT_TRUE(alone.quantizer.input(0, input).is_same(input));
  EXPECT_FALSE(alone.quantizer.weight(1, weight).is_same(weight));
  EXPECT_TRUE(alone.quantizer.active());
  alone.quantizer.configure({}, true, true);
  EXPECT_FALSE(alone.quantizer.active());
  EXPECT_TRUE(alone.quantizer.weight(1, weight).is_same(weight));
}

TEST(FakeQuantizer, WeightsAreMultiplesOfTheScaleOfTheirOutput) {
  Alone alone;
  const at::Tensor weight = at::randn({5, 7});
  const at::Tensor fake = alone.quantizer.weight(0, weight);
  const at::Tensor scales = weight.abs().amax(1, true) / 127;
  const at::Tensor steps = fake / scales;
  EXPECT_TRUE(at::allclose(steps, steps.round(), 0, 1e-4));
  EXPECT_LE(((fake - weight).abs() / scales).max().item<float>(), 0.5001F);
  EXPECT_GT(fake.ne(weight).sum().item<int64_t>(), 20);
}

TEST(FakeQuantizer, PerTensorUsesOneScale) {
  Alone alone(/*per_output=*/false);
  const at::Tensor weight = at::tensor({127.0F, -3.4F, 0.4F, 0.6F}).view({2, 2});
  EXPECT_TRUE(at::equal(alone.quantizer.weight(0, weight),
                        at::tensor({127.0F, -3.0F, 0.0F, 1.0F}).view({2, 2})));
  EXPECT_EQ(alone.quantizer.view(0).weight_scales.numel(), 1);
}

TEST(FakeQuantizer, WeightsOfZeroStayExactlyZero) {
  for (const bool per_output : {true, false}) {
    Alone alone(per_output);
    at::Tensor weight = at::randn({8, 9});
    const at::Tensor kept = at::randn({8, 9}).gt(0.5);
    weight.mul_(kept);
    weight[3].zero_();  // a whole output
    const at::Tensor fake = alone.quantizer.weight(0, weight);
    EXPECT_EQ(fake.masked_select(weight.eq(0)).count_nonzero().item<int64_t>(), 0);
    EXPECT_FALSE(at::isnan(fake).any().item<bool>());
  }
}

TEST(FakeQuantizer, TheWeightsGradientPassesStraightThrough) {
  Alone alone;
  const at::Tensor weight = at::randn({5, 7}).set_requires_grad(true);
  const at::Tensor upstream = at::randn({5, 7});
  alone.quantizer.weight(0, weight).backward(upstream);
  EXPECT_TRUE(at::equal(weight.grad(), upstream));
}

TEST(FakeQuantizer, InputsPassUntilTheyWereObserved) {
  Alone alone;
  const at::Tensor input = at::tensor({-1.0F, 0.3F, 4.0F});
  EXPECT_TRUE(alone.step(input).is_same(input));
  EXPECT_EQ(alone.range().num_observations, 1);
  EXPECT_FLOAT_EQ(alone.range().min, -1);
  EXPECT_FLOAT_EQ(alone.range().max, 4);
  EXPECT_EQ(alone.range(1).num_observations, 0);

  const at::Tensor next = alone.quantizer.input(0, input);
  const float scale = 5.0F / 255;
  EXPECT_NEAR(next[0].item<float>(), -1, 1e-6);
  EXPECT_NEAR(next[1].item<float>(), std::round(0.3F / scale) * scale, 1e-6);
  EXPECT_NE(next[1].item<float>(), 0.3F);
}

TEST(FakeQuantizer, AveragesMoveByAHundredthOfTheWay) {
  Alone alone;
  alone.step(at::tensor({-1.0F, 2.0F}));
  alone.step(at::tensor({-3.0F, 1.0F}));
  EXPECT_FLOAT_EQ(alone.range().min, -1.02F);
  EXPECT_FLOAT_EQ(alone.range().max, 1.99F);
  EXPECT_EQ(alone.range().num_observations, 2);
}

TEST(FakeQuantizer, MicroBatchesOfOneStepAreOneObservation) {
  Alone alone;
  alone.quantizer.input(0, at::tensor({1.0F, 2.0F}));
  alone.quantizer.input(0, at::tensor({-5.0F, 1.0F}));
  EXPECT_EQ(alone.range().num_observations, 0);
  alone.step(at::tensor({0.0F, 9.0F}));
  EXPECT_EQ(alone.range().num_observations, 1);
  EXPECT_FLOAT_EQ(alone.range().min, -5);
  EXPECT_FLOAT_EQ(alone.range().max, 9);
}

TEST(FakeQuantizer, EvaluationQuantizesAndObservesNothing) {
  Alone alone;
  alone.step(at::tensor({-1.0F, 1.0F}));
  {
    const at::NoGradGuard no_grad;
    const at::Tensor seen = alone.step(at::tensor({-9.0F, 0.5F, 9.0F}));
    EXPECT_NEAR(seen[2].item<float>(), 1, 0.01);  // clamped to the range, so it was quantized
  }
  EXPECT_EQ(alone.range().num_observations, 1);
  EXPECT_FLOAT_EQ(alone.range().max, 1);
}

TEST(FakeQuantizer, FrozenObserversKeepTheirRange) {
  Alone alone;
  alone.step(at::tensor({-1.0F, 1.0F}));
  alone.quantizer.configure({0, 1}, true, /*observers_on=*/false);
  EXPECT_NEAR(alone.step(at::tensor({-9.0F, 9.0F}))[1].item<float>(), 1, 0.01);
  EXPECT_EQ(alone.range().num_observations, 1);
}

TEST(FakeQuantizer, ASkippedStepLeavesNoTrace) {
  Alone alone;
  alone.step(at::tensor({-1.0F, 1.0F}));
  const InputRanges::Range before = alone.range();
  alone.step(at::tensor({-9.0F, 9.0F}), /*counted=*/false);
  alone.quantizer.input(1, at::tensor({-9.0F, 9.0F}));
  alone.quantizer.end_step(alone.world, false);
  alone.step(at::tensor({-1.0F, 1.0F}));  // would show what was kept aside
  EXPECT_EQ(alone.range().min, before.min);
  EXPECT_EQ(alone.range().max, before.max);
  EXPECT_EQ(alone.range().num_observations, 2);
  EXPECT_EQ(alone.range(1).num_observations, 0);
}

TEST(FakeQuantizer, ValuesThatAreNotFiniteStayVisible) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const float bad : {std::nanf(""), inf, -inf}) {
    Alone alone;
    alone.step(at::tensor({-1.0F, 1.0F}));
    const at::Tensor seen = alone.step(at::tensor({bad, 0.5F}));
    EXPECT_TRUE(at::isnan(seen).any().item<bool>());
    EXPECT_EQ(alone.range().num_observations, 1) << "also if such a step should count";
    alone.quantizer.configure({0}, true, /*observers_on=*/false);
    EXPECT_TRUE(at::isnan(alone.quantizer.input(0, at::tensor({bad}))).all().item<bool>());
  }
}

TEST(FakeQuantizer, InputsOutsideTheRangeGetNoGradient) {
  Alone alone;
  alone.step(at::tensor({-1.0F, 1.0F}));
  const at::Tensor input = at::tensor({-9.0F, 0.5F, 9.0F}).set_requires_grad(true);
  const at::Tensor seen = alone.quantizer.input(0, input);
  seen.backward(at::ones_like(seen));
  EXPECT_TRUE(at::equal(input.grad(), at::tensor({0.0F, 1.0F, 0.0F})));
}

TEST(FakeQuantizer, AnEmptyShareOfABatchIsNoObservation) {
  Alone alone;
  EXPECT_EQ(alone.step(at::empty({0, 3})).sizes(), (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(alone.range().num_observations, 0);
}

TEST(FakeQuantizer, RanksAgreeOnTheRangeOfAll) {
  const std::vector<std::vector<float>> seen_by_rank = {{-1, 2}, {0, 7}, {}, {-3, 1}};
  tests::run_ranks(4, [&](dist::Communicator& world) {
    FakeQuantizer quantizer(two_layers());
    quantizer.configure({0, 1}, true, true);
    const auto rank = static_cast<size_t>(world.rank());
    quantizer.input(0, at::tensor(seen_by_rank[rank]));  // rank 2 has no share of this batch
    if (rank == 1) quantizer.input(1, at::tensor({5.0F, 6.0F}));
    quantizer.end_step(world, true);
    EXPECT_EQ(quantizer.view(0).input_range.min, -3);
    EXPECT_EQ(quantizer.view(0).input_range.max, 7);
    EXPECT_EQ(quantizer.view(1).input_range.min, 5);
    EXPECT_EQ(quantizer.view(1).input_range.max, 6);
    EXPECT_EQ(quantizer.view(1).input_range.num_observations, 1);
  });
}

/// Copies values, as a save and a restore do.
void copy_state(const StateList& from, const StateList& to) {
  ASSERT_EQ(from.size(), to.size());
  for (size_t i = 0; i < from.size(); ++i) {
    EXPECT_EQ(from[i].key, to[i].key);
    to[i].tensor.copy_(from[i].tensor);
  }
}

TEST(FakeQuantizer, ARestoredStateTakesTheSamePath) {
  Alone whole, resumed;
  for (int i = 0; i < 5; ++i) whole.step(at::randn({20}));
  copy_state(whole.quantizer.state(), resumed.quantizer.state());
  for (int i = 0; i < 5; ++i) {
    const at::Tensor input = at::randn({20});
    EXPECT_TRUE(at::equal(whole.step(input), resumed.step(input)));
    EXPECT_EQ(whole.range().min, resumed.range().min);
    EXPECT_EQ(whole.range().max, resumed.range().max);
    EXPECT_EQ(whole.range().num_observations, resumed.range().num_observations);
  }
}

TEST(FakeQuantizer, SaysInItsStateHowEachLayerIsQuantized) {
  Alone alone;
  alone.quantizer.configure({1}, /*per_output=*/false, true);
  std::vector<std::string> keys;
  for (const StateEntry& entry : alone.quantizer.state()) {
    keys.push_back(entry.key);
    EXPECT_EQ(entry.value_if_missing, 0.0);
    EXPECT_EQ(entry.tensor.dim(), 0);
    if (entry.key.ends_with("conv/scheme")) {
      EXPECT_EQ(entry.tensor.item<int64_t>(), 0);
    }
    if (entry.key.ends_with("head/scheme")) {
      EXPECT_EQ(entry.tensor.item<int64_t>(), 1);
    }
  }
  EXPECT_EQ(keys, (std::vector<std::string>{"_lockstep/quantization/blocks/0/conv/input_min",
                                            "_lockstep/quantization/blocks/0/conv/input_max",
                                            "_lockstep/quantization/blocks/0/conv/observations",
                                            "_lockstep/quantization/head/input_min",
                                            "_lockstep/quantization/head/input_max",
                                            "_lockstep/quantization/head/observations",
                                            "_lockstep/quantization/blocks/0/conv/scheme",
                                            "_lockstep/quantization/head/scheme"}));
}

}  // namespace fake_quantizer_test
}  // namespace lockstep::recal
