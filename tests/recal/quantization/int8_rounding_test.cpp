#include "recal/quantization/int8_rounding.h"

#include <cmath>
#include <limits>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/fake_quantize_per_channel_affine.h>
#include <ATen/ops/fake_quantize_per_tensor_affine.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

namespace lockstep::recal {
namespace int8_rounding_test {

/// ATen's own result and gradient for a gradient of `upstream`.
struct Outcome {
  at::Tensor values, gradient;
};

template <typename Round>
Outcome outcome(const at::Tensor& input, const at::Tensor& upstream, Round round) {
  const at::Tensor leaf = input.detach().requires_grad_(true);
  const at::Tensor rounded = round(leaf);
  rounded.backward(upstream);
  return {rounded.detach(), leaf.grad()};
}

void expect_equal(const Outcome& ours, const Outcome& atens) {
  EXPECT_TRUE(at::equal(ours.values, atens.values));
  EXPECT_TRUE(at::equal(ours.gradient, atens.gradient));
}

void expect_input_as_aten(const at::Tensor& input, InputScale by) {
  const at::Tensor upstream = at::randn(input.sizes()).to(input.scalar_type());
  expect_equal(outcome(input, upstream, [&](const at::Tensor& x) { return round_input(x, by); }),
               outcome(input, upstream, [&](const at::Tensor& x) {
                 return at::fake_quantize_per_tensor_affine(x, by.scale, by.zero_point, 0,
                                                            kInputQuantMax);
               }));
}

TEST(RoundInput, EqualsAtenBitForBit) {
  for (const int64_t num_items : {1, 15, 16, 17, 1000, 70'000})
    for (const InputScale by : {input_scale(-1, 2), input_scale(0, 6), input_scale(-3, 0),
                                InputScale{kSmallestScale, 128}})
      expect_input_as_aten(at::randn({num_items}), by);
}

/// Whole and half steps around zero and around both ends of the range.
TEST(RoundInput, TiesGoToEvenAndEndsAreCut) {
  for (const InputScale by :
       {InputScale{0.25F, 0}, {0.25F, 7}, {0.25F, 255}, {0.013F, 99}, {0.0371F, 3}}) {
    expect_input_as_aten((at::arange(-600, 600, at::kFloat) / 2) * by.scale, by);
    expect_input_as_aten(at::tensor({1e6F, -1e6F, 1e9F, -1e9F}), by);
  }
}

TEST(RoundInput, OtherTypesAndStridesUseAten) {
  const InputScale by = input_scale(-1, 2);
  expect_input_as_aten(at::randn({6, 5}).t(), by);
  expect_input_as_aten(at::randn({40}, at::kDouble), by);
  expect_input_as_aten(at::randn({40}).to(at::kBFloat16), by);
}

TEST(RoundInput, WhatIsNotFiniteBecomesNaN) {
  const float inf = std::numeric_limits<float>::infinity();
  const at::Tensor bad = at::tensor({std::nanf(""), 0.5F, inf, -0.5F, -inf});
  const at::Tensor expected = at::tensor({1, 0, 1, 0, 1});
  for (const at::Tensor& input : {bad, bad.to(at::kDouble), bad.repeat({8})}) {
    const at::Tensor rounded = round_input(input, input_scale(-1, 1));
    EXPECT_TRUE(at::equal(at::isnan(rounded).to(at::kInt), expected.repeat({input.numel() / 5})));
  }
}

TEST(RoundInput, AGradientThatIsNotFiniteStaysVisibleWhereItIsCut) {
  const at::Tensor input = at::tensor({9.0F, 0.5F}).requires_grad_(true);
  round_input(input, input_scale(-1, 1))
      .backward(at::tensor({std::numeric_limits<float>::infinity(), 2.0F}));
  EXPECT_TRUE(std::isnan(input.grad()[0].item<float>()));
  EXPECT_EQ(input.grad()[1].item<float>(), 2.0F);
}

TEST(RoundInput, WithoutGradientsThereIsNoGraph) {
  const at::NoGradGuard no_grad;
  const at::Tensor input = at::randn({20}).requires_grad_(true);
  EXPECT_FALSE(round_input(input, input_scale(-1, 1)).requires_grad());
}

TEST(RoundWeight, EqualsAtenBitForBit) {
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{16, 1, 3, 3}, {64, 32, 3, 3}, {10, 256}, {7, 5}, {1, 3}})
    for (const bool per_output : {true, false}) {
      const at::Tensor weight = at::randn(shape), upstream = at::randn(shape);
      weight.select(0, 0).mul_(per_output && shape[0] > 1 ? 0 : 1);  // an all-zero output
      const at::Tensor scales = weight_scales(weight, per_output);
      const at::Tensor zeros = at::zeros(scales.sizes(), at::kInt);
      expect_equal(
          outcome(weight, upstream, [&](const at::Tensor& w) { return round_weight(w, scales); }),
          outcome(weight, upstream, [&](const at::Tensor& w) {
            return per_output ? at::fake_quantize_per_channel_affine(
                                    w, scales, zeros, 0, -kWeightQuantMax, kWeightQuantMax)
                              : at::fake_quantize_per_tensor_affine(
                                    w, scales, zeros, -kWeightQuantMax, kWeightQuantMax);
          }));
    }
}

TEST(RoundWeight, OtherTypesUseAten) {
  const at::Tensor weight = at::randn({4, 6}, at::kDouble);
  for (const bool per_output : {true, false}) {
    const at::Tensor scales = weight_scales(weight, per_output);
    const at::Tensor steps =
        round_weight(weight, scales) / scales.to(at::kDouble).view({scales.numel(), 1});
    EXPECT_LT((steps - steps.round()).abs().max().item<double>(), 1e-4);
  }
}

TEST(RoundWeight, AWeightThatIsNotFiniteMakesNaN) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    at::Tensor weight = at::randn({3, 20}).to(type);
    weight[1][4].fill_(std::numeric_limits<double>::infinity());
    const at::Tensor rounded = round_weight(weight, weight_scales(weight, true));
    EXPECT_TRUE(at::isnan(rounded[1]).any().item<bool>());
    EXPECT_FALSE(at::isnan(rounded[0]).any().item<bool>());
  }
}

}  // namespace int8_rounding_test
}  // namespace lockstep::recal
