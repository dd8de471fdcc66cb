#include "optim/state_blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/tensors/square_sums.h"
#include "optim/flat_training.h"

namespace lockstep::optim {
namespace state_blocks_test {

/// The numbers of the map as Dettmers et al. define them: in decade d, centers of equal cells.
std::vector<double> numbers_of_map(bool is_positive) {
  std::vector<double> all{0, 1};
  for (int decade = 0; decade < 7; ++decade) {
    const int num_cells = (is_positive ? 2 : 1) << decade;
    for (int cell = 0; cell < num_cells; ++cell) {
      const double number = std::pow(10, decade - 6) * (0.1 + 0.9 * (cell + 0.5) / num_cells);
      all.push_back(number);
      if (!is_positive) all.push_back(-number);
    }
  }
  std::ranges::sort(all);
  return all;
}

std::vector<float> decoded(const std::vector<uint8_t>& codes, float scale, bool is_positive,
                           SimdPath path) {
  std::vector<float> values(codes.size());
  update_kernels(path).dequantize(static_cast<int64_t>(codes.size()), codes.data(), scale,
                                  is_positive, values.data());
  return values;
}

/// Numbers of very different sizes, some of them 0.
std::vector<float> samples(int64_t num, bool is_positive, int seed) {
  at::manual_seed(seed);
  at::Tensor values = at::pow(10, at::rand({num}) * 9 - 8) * at::rand({num}).gt(0.05);
  if (!is_positive) values = values * (at::randint(0, 2, {num}) * 2 - 1);
  values = values.to(at::kFloat).contiguous();
  return {values.const_data_ptr<float>(), values.const_data_ptr<float>() + num};
}

TEST(DynamicMap, HasTheNumbersOfThePaper) {
  std::vector<uint8_t> codes(256);
  std::iota(codes.begin(), codes.end(), 0);
  for (const SimdPath path : simd_paths())
    for (const bool is_positive : {false, true}) {
      std::vector<float> found = decoded(codes, 1, is_positive, path);
      std::ranges::sort(found);
      const std::vector<double> expected = numbers_of_map(is_positive);
      ASSERT_EQ(expected.size(), 256U);
      for (size_t i = 0; i < found.size(); ++i)
        EXPECT_NEAR(found[i], expected[i], 2e-6 * std::abs(expected[i])) << i;
    }
}

TEST(DynamicMap, ANumberGetsTheNearestOne) {
  for (const bool is_positive : {false, true}) {
    const std::vector<double> map = numbers_of_map(is_positive);
    for (int seed = 0; seed < 40; ++seed) {
      const std::vector<float> values = samples(seed == 0 ? 1 : 256 - seed, is_positive, seed);
      std::vector<uint8_t> codes(values.size());
      const float scale = update_kernels(fastest_simd_path())
                              .quantize(static_cast<int64_t>(values.size()), values.data(),
                                        is_positive, codes.data());
      const std::vector<float> found = decoded(codes, scale, is_positive, fastest_simd_path());
      for (size_t i = 0; i < values.size(); ++i) {
        const double wanted = scale == 0 ? 0 : values[i] / scale;
        if (is_positive && wanted > 0 && wanted < map[1]) {
          EXPECT_NEAR(found[i] / scale, map[1], 1e-6 * map[1]);  // never 0
          continue;
        }
        double least = std::numeric_limits<double>::infinity();
        for (const double number : map) least = std::min(least, std::abs(number - wanted));
        EXPECT_NEAR(std::abs(found[i] - values[i]), least * std::abs(scale),
                    2e-6 * std::abs(values[i]))
            << values[i] << " of " << scale;
      }
    }
  }
}

TEST(DynamicMap, WrittenAgainBytesAreTheSameOnEveryPath) {
  for (const bool is_positive : {false, true})
    for (int seed = 0; seed < 200; ++seed) {
      std::vector<float> values = samples(200 + seed % 57, is_positive, seed);
      if (seed % 3 == 0)
        for (float& value : values) value *= 1e-18F;
      std::vector<uint8_t> first;
      float first_scale = 0;
      for (const SimdPath path : simd_paths()) {
        const auto num = static_cast<int64_t>(values.size());
        std::vector<uint8_t> codes(values.size()), again(values.size());
        const float scale =
            update_kernels(path).quantize(num, values.data(), is_positive, codes.data());
        const std::vector<float> back = decoded(codes, scale, is_positive, path);
        EXPECT_EQ(update_kernels(path).quantize(num, back.data(), is_positive, again.data()),
                  scale);
        EXPECT_EQ(again, codes);
        if (first.empty()) {
          first = codes;
          first_scale = scale;
        }
        EXPECT_EQ(codes, first);
        EXPECT_EQ(scale, first_scale);
      }
    }
}

TEST(DynamicMap, WhatIsNotFiniteStaysNotFinite) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> values(100, 0.5F);
    values[70] = bad;
    std::vector<uint8_t> codes(values.size());
    for (const SimdPath path : simd_paths())
      for (const bool is_positive : {false, true})
        EXPECT_FALSE(std::isfinite(
            update_kernels(path).quantize(100, values.data(), is_positive, codes.data())));
  }
}

TEST(StateBlocks, FollowRowsThatAreLongAndJoinShortOnes) {
  ParamTable params;
  int64_t num_elements = 0;
  FlatBuffer buffer;
  for (const auto& shape :
       std::vector<std::vector<int64_t>>{{3, 700}, {100, 10}, {2, 256}, {7}, {}}) {
    params.push_back({.name = std::to_string(params.size()), .tensor = at::rand(shape)});
    const int64_t num = params.back().tensor.numel();
    buffer.slices.push_back({static_cast<int64_t>(params.size()) - 1, num_elements, num});
    num_elements += num;
  }
  buffer.values_E = at::rand({num_elements});
  const StateBlocks blocks(buffer, row_elements(params));
  // 256 + 256 + 188 by row; 25 rows of 10; rows of 256; the vector; the scalar.
  const std::vector<int64_t> sizes{256, 256, 188, 256, 256, 188, 256, 256, 188,
                                   250, 250, 250, 250, 256, 256, 7,   1};
  int64_t begin_E = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const StateBlocks::Block block = blocks.at(static_cast<int64_t>(i));
    EXPECT_EQ(block.begin_E, begin_E) << i;
    EXPECT_EQ(block.num_elements, sizes[i]) << i;
    EXPECT_EQ(blocks.before(begin_E), static_cast<int64_t>(i));
    begin_E += sizes[i];
  }
  EXPECT_EQ(blocks.before(num_elements), static_cast<int64_t>(sizes.size()));
  EXPECT_THROW((void)blocks.before(100), Error);
}

OptimizerOptions in_bytes(const std::string& type) {
  OptimizerOptions options = options_of(type, 0.01);
  options.state_dtype = "int8";
  return options;
}

TEST(StateIn8Bits, TakesAQuarterAndAScaleForEachBlock) {
  Training in_floats(options_of("adamw")), in_8_bits(in_bytes("adamw"));
  for (Training* one : {&in_floats, &in_8_bits}) one->steps(1);
  EXPECT_LT(static_cast<double>(in_8_bits.optimizer->slot_bytes()),
            0.27 * static_cast<double>(in_floats.optimizer->slot_bytes()));
}

TEST(StateIn8Bits, ASaveInBetweenChangesNoBit) {
  for (const char* type : {"momentum", "adam", "adamw"}) {
    Training one(in_bytes(type)), other(in_bytes(type));
    one.steps(6);
    for (int i = 0; i < 6; ++i) {
      other.steps(1);
      (void)other.optimizer->state();
    }
    for (size_t b = 0; b < one.flat_params.num_buffers(); ++b)
      EXPECT_TRUE(
          at::equal(one.flat_params.buffers()[b].values_E, other.flat_params.buffers()[b].values_E))
          << type;
  }
}

TEST(StateIn8Bits, StaysNearTheSameUpdatesInFloats) {
  for (const char* type : {"momentum", "adam", "adamw"}) {
    Training exact(options_of(type, 0.01)), rough(in_bytes(type));
    const at::Tensor before = exact.flat_params.buffers()[0].values_E.clone();
    for (Training* one : {&exact, &rough}) one->steps(20);
    const at::Tensor way = exact.flat_params.buffers()[0].values_E - before;
    const at::Tensor apart =
        rough.flat_params.buffers()[0].values_E - exact.flat_params.buffers()[0].values_E;
    EXPECT_LT(apart.norm().item<double>(), 0.03 * way.norm().item<double>()) << type;
  }
}

TEST(StateIn8Bits, OtherParametersThanFloatsAreRefused) {
  EXPECT_THROW(Training(in_bytes("adamw"), at::kDouble), Error);
}

}  // namespace state_blocks_test
}  // namespace lockstep::optim
