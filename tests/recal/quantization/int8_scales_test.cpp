#include "recal/quantization/int8_rounding.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/fake_quantize_per_channel_affine.h>
#include <ATen/ops/fake_quantize_per_tensor_affine.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

namespace lockstep::recal {
namespace int8_scales_test {

/// The values that int8 weights stand for.
at::Tensor dequantized(const at::Tensor& quantized_OX, const at::Tensor& scales) {
  std::vector<int64_t> beside(static_cast<size_t>(quantized_OX.dim()), 1);
  beside[0] = -1;
  return quantized_OX.to(at::kFloat) * (scales.dim() == 0 ? scales : scales.view(beside));
}

TEST(InputScale, SpreadsTheRangeOver255Steps) {
  const InputScale by = input_scale(-1, 4);
  EXPECT_FLOAT_EQ(by.scale, 5.0F / 255);
  EXPECT_EQ(by.zero_point, 51);
}

TEST(InputScale, TheRangeAlwaysHoldsZero) {
  EXPECT_EQ(input_scale(2, 4).zero_point, 0);
  EXPECT_FLOAT_EQ(input_scale(2, 4).scale, 4.0F / 255);
  EXPECT_EQ(input_scale(-4, -2).zero_point, 255);
  EXPECT_FLOAT_EQ(input_scale(-4, -2).scale, 4.0F / 255);
}

TEST(InputScale, AnEmptyRangeHasTheSmallestScale) {
  EXPECT_EQ(input_scale(0, 0).scale, kSmallestScale);
  EXPECT_EQ(input_scale(0, 0).zero_point, 0);
}

TEST(WeightScales, AreTheLargestMagnitudeOver127) {
  const at::Tensor weight = at::tensor({1.0F, -2.54F, 0.0F, 0.0F, 0.5F, 0.127F}).view({3, 2});
  const at::Tensor each = weight_scales(weight, true);
  EXPECT_FLOAT_EQ(each[0].item<float>(), 0.02F);
  EXPECT_EQ(each[1].item<float>(), kSmallestScale);
  EXPECT_FLOAT_EQ(each[2].item<float>(), 0.5F / 127);
  const at::Tensor one = weight_scales(weight, false);
  EXPECT_EQ(one.sizes(), at::IntArrayRef{1});
  EXPECT_FLOAT_EQ(one.item<float>(), 0.02F);
}

TEST(QuantizeWeight, TheLargestIs127AndAnAllZeroOutputStaysZero) {
  const at::Tensor weight = at::tensor({1.0F, -2.54F, 0.0F, -0.0F}).view({2, 2});
  const at::Tensor scales = weight_scales(weight, true);
  const at::Tensor quantized = quantize_weight(weight, scales);
  EXPECT_EQ(quantized.scalar_type(), at::kChar);
  EXPECT_TRUE(at::equal(quantized, at::tensor({50, -127, 0, 0}, at::kChar).view({2, 2})));
  EXPECT_TRUE(at::equal(dequantized(quantized, scales)[1], at::zeros({2})));
}

/// int8 weights stand for the very values that training computes with, bit for bit.
TEST(QuantizeWeight, EqualsATensFakeQuantization) {
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{16, 1, 3, 3}, {64, 32, 3, 3}, {10, 256}, {7, 5}}) {
    at::Tensor weight = at::randn(shape);
    weight.select(0, 1).zero_();
    weight.select(0, 2).mul_(1e-12);
    for (const bool per_output : {true, false}) {
      const at::Tensor scales = weight_scales(weight, per_output);
      const at::Tensor zeros = at::zeros(scales.sizes(), at::kInt);
      const at::Tensor fake =
          per_output ? at::fake_quantize_per_channel_affine(weight, scales, zeros, 0, -127, 127)
                     : at::fake_quantize_per_tensor_affine(weight, scales, zeros, -127, 127);
      EXPECT_TRUE(at::equal(dequantized(quantize_weight(weight, scales), scales), fake));
    }
  }
}

}  // namespace int8_scales_test
}  // namespace lockstep::recal
