#include "recal/magnitude_mask.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "base/random.h"

namespace lockstep::recal {
namespace {

using ::testing::ElementsAre;

std::vector<int> items(const at::Tensor& mask) {
  const auto* flags = mask.const_data_ptr<uint8_t>();
  return {flags, flags + mask.numel()};
}

at::Tensor floats(const std::vector<float>& values) { return at::tensor(values); }

/// The definition, by a stable sort: pruned ones first, then by magnitude, then by index.
std::vector<int> brute_force(const std::vector<float>& values, const std::vector<int>& before,
                             double sparsity) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (before[a] != before[b]) return before[a] < before[b];
    return before[a] != 0 && std::fabs(values[a]) < std::fabs(values[b]);
  });
  std::vector<int> mask = before;
  for (int64_t i = 0; i < std::llround(sparsity * static_cast<double>(values.size())); ++i)
    mask[order[static_cast<size_t>(i)]] = 0;
  return mask;
}

TEST(MagnitudeMask, DropsTheSmallest) {
  EXPECT_THAT(items(magnitude_mask(floats({0.5, -0.1, 0.3, -0.9}), 0.5)), ElementsAre(1, 0, 0, 1));
  EXPECT_THAT(items(magnitude_mask(floats({0.5, -0.1, 0.3, -0.9}), 0)), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(items(magnitude_mask(floats({0.5, -0.1, 0.3, -0.9}), 0.99)), ElementsAre(0, 0, 0, 0));
}

TEST(MagnitudeMask, OfEqualMagnitudesTheLowestIndexGoesFirst) {
  EXPECT_THAT(items(magnitude_mask(floats({1, -1, 1, -1, 1}), 0.4)), ElementsAre(0, 0, 1, 1, 1));
  EXPECT_THAT(items(magnitude_mask(floats({2, 1, 0.5, -1, 1}), 0.4)), ElementsAre(1, 0, 0, 1, 1));
  EXPECT_THAT(items(magnitude_mask(floats({0.0F, -0.0F, 0.0F, 1}), 0.5)),
              ElementsAre(0, 0, 1, 1));  // -0 is 0
}

TEST(MagnitudeMask, CountIsRoundedHalfUp) {
  for (const auto& [sparsity, num_weights, expected] :
       std::vector<std::tuple<double, int64_t, int64_t>>{
           {0.5, 3, 2}, {0.25, 2, 1}, {0.05, 9, 0}, {0.05, 10, 1}, {0.8, 1, 1}, {0.9, 0, 0}}) {
    EXPECT_EQ(num_to_prune(sparsity, num_weights), expected);
    const at::Tensor mask = magnitude_mask(at::ones({num_weights}), sparsity);
    EXPECT_EQ(num_weights - mask.count_nonzero().item<int64_t>(), expected);
  }
}

TEST(MagnitudeMask, WhatIsPrunedStaysPrunedAndComesFirst) {
  at::Tensor mask = at::tensor({1, 1, 0, 1}, at::kByte);
  // A living zero at 0 and a pruned weight at 2: the pruned one counts first, however large.
  EXPECT_EQ(prune_smallest(floats({0, 5, 9, 0}), 0.25, mask), 0);
  EXPECT_THAT(items(mask), ElementsAre(1, 1, 0, 1));
  EXPECT_EQ(prune_smallest(floats({0, 5, 9, 0}), 0.5, mask), 1);
  EXPECT_THAT(items(mask), ElementsAre(0, 1, 0, 1));
  EXPECT_EQ(prune_smallest(floats({0, 5, 9, 0}), 0.25, mask), 0);  // never revived
  EXPECT_THAT(items(mask), ElementsAre(0, 1, 0, 1));
}

TEST(MagnitudeMask, NotANumberCountsAsTheLargest) {
  const float nan = std::nanf("");
  EXPECT_THAT(items(magnitude_mask(floats({nan, 1e30F, -INFINITY, 1, -nan}), 0.6)),
              ElementsAre(1, 0, 0, 0, 1));
}

TEST(MagnitudeMask, EveryFloatType) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    const at::Tensor values = floats({0.5, -0.125, 0.25, -1}).to(dtype).reshape({2, 2});
    const at::Tensor mask = magnitude_mask(values, 0.5);
    EXPECT_THAT(items(mask), ElementsAre(1, 0, 0, 1)) << dtype;
    EXPECT_EQ(mask.sizes(), values.sizes());
  }
}

TEST(MagnitudeMask, OtherStridesGiveTheRowMajorOrder) {
  const at::Tensor values = floats({1, 1, 1, 1, 1, 1}).reshape({2, 3}).t();  // [3, 2], all ties
  EXPECT_THAT(items(magnitude_mask(values, 0.5)), ElementsAre(0, 0, 0, 1, 1, 1));
}

TEST(MagnitudeMask, EqualsAStableSortOverRandomSizesTiesAndSparsities) {
  const CounterRandom random{7};
  uint64_t draw = 0;
  for (int round = 0; round < 300; ++round) {
    const auto num_weights = static_cast<size_t>(random.below(draw++, 200));
    const uint64_t num_levels =
        1 + random.below(draw++, 12);  // few levels: many ties, zeros among them
    std::vector<float> values(num_weights);
    for (float& value : values) {
      const auto level = static_cast<float>(random.below(draw++, num_levels));
      value = random.below(draw++, 2) == 0 ? level : -level;
    }
    at::Tensor mask = at::ones({static_cast<int64_t>(num_weights)}, at::kByte);
    std::vector<int> expected(num_weights, 1);
    double sparsity = 0;
    for (int update = 0; update < 4; ++update) {
      sparsity += (1 - sparsity) * random.uniform(draw++);
      prune_smallest(floats(values), sparsity, mask);
      expected = brute_force(values, expected, sparsity);
      ASSERT_EQ(items(mask), expected) << "round " << round << " sparsity " << sparsity;
      ASSERT_EQ(std::count(expected.begin(), expected.end(), 0),
                std::llround(sparsity * static_cast<double>(num_weights)));
      std::rotate(values.begin(), values.begin() + (num_weights > 0 ? 1 : 0),
                  values.end());  // weights move on
    }
  }
}

}  // namespace
}  // namespace lockstep::recal
