#include "recal/masks/mask_update.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "base/error.h"
#include "base/random.h"
#include "base/simd/bit_mask.h"
#include "recal/masks/mask_table.h"
#include "recal/masks/structured_masks.h"
#include "tests/recal/masks/mask_oracle.h"

namespace lockstep::recal {
namespace mask_update_test {

using ::testing::ElementsAre;
using tests::MaskOracle;

MaskKind kind(const std::string& text) { return MaskKind::parse(text).value(); }

MaskedWeight masked(const at::Tensor& values) {
  return {"w", values, new_kept_bits(values.numel())};
}

std::vector<int> kept_items(const MaskedWeight& weight) {
  const at::Tensor flags = kept_flags(weight.kept_bits, weight.values.sizes()).view(-1);
  const auto* flag = flags.const_data_ptr<uint8_t>();
  return {flag, flag + flags.numel()};
}

std::vector<int> mask_of(const at::Tensor& values, double sparsity,
                         const std::string& kind_text = "unstructured") {
  const MaskedWeight weight = masked(values);
  update_masks({&weight, 1}, sparsity, {kind(kind_text), false});
  return kept_items(weight);
}

at::Tensor floats(const std::vector<float>& values) { return at::tensor(values); }

TEST(MaskUpdate, DropsTheSmallest) {
  EXPECT_THAT(mask_of(floats({0.5, -0.1, 0.3, -0.9}), 0.5), ElementsAre(1, 0, 0, 1));
  EXPECT_THAT(mask_of(floats({0.5, -0.1, 0.3, -0.9}), 0), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(mask_of(floats({0.5, -0.1, 0.3, -0.9}), 0.99), ElementsAre(0, 0, 0, 0));
}

TEST(MaskUpdate, OfEqualMagnitudesTheLowestIndexGoesFirst) {
  EXPECT_THAT(mask_of(floats({1, -1, 1, -1, 1}), 0.4), ElementsAre(0, 0, 1, 1, 1));
  EXPECT_THAT(mask_of(floats({2, 1, 0.5, -1, 1}), 0.4), ElementsAre(1, 0, 0, 1, 1));
  EXPECT_THAT(mask_of(floats({0.0F, -0.0F, 0.0F, 1}), 0.5), ElementsAre(0, 0, 1, 1));  // -0 is 0
}

TEST(MaskUpdate, CountIsRoundedHalfUp) {
  for (const auto& [sparsity, num_weights, expected] :
       std::vector<std::tuple<double, int64_t, int64_t>>{
           {0.5, 3, 2}, {0.25, 2, 1}, {0.05, 9, 0}, {0.05, 10, 1}, {0.8, 1, 1}, {0.9, 0, 0}}) {
    EXPECT_EQ(num_to_prune(sparsity, num_weights), expected);
    const std::vector<int> kept = mask_of(at::ones({num_weights}), sparsity);
    EXPECT_EQ(std::count(kept.begin(), kept.end(), 0), expected);
  }
}

TEST(MaskUpdate, WhatIsPrunedStaysPrunedAndComesFirst) {
  const MaskedWeight weight = masked(floats({0, 5, 9, 0}));
  drop(weight.kept_bits.mutable_data_ptr<uint8_t>(), 2);
  // A living zero at 0 and a pruned weight at 2: the pruned one counts first, however large.
  update_masks({&weight, 1}, 0.25, {});
  EXPECT_THAT(kept_items(weight), ElementsAre(1, 1, 0, 1));
  update_masks({&weight, 1}, 0.5, {});
  EXPECT_THAT(kept_items(weight), ElementsAre(0, 1, 0, 1));
  update_masks({&weight, 1}, 0.25, {});  // never regrown
  EXPECT_THAT(kept_items(weight), ElementsAre(0, 1, 0, 1));
}

TEST(MaskUpdate, NotANumberCountsAsTheLargest) {
  const float nan = std::nanf("");
  EXPECT_THAT(mask_of(floats({nan, 1e30F, -INFINITY, 1, -nan}), 0.6), ElementsAre(1, 0, 0, 0, 1));
  EXPECT_THAT(
      mask_of(floats({nan, 0, 0, 0, 1e30F, 1e30F, 1e30F, 1e30F}).reshape({2, 4}), 0.5, "block4"),
      ElementsAre(1, 1, 1, 1, 0, 0, 0, 0));
}

TEST(MaskUpdate, EveryFloatType) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    const at::Tensor values = floats({0.5, -0.125, 0.25, -1}).to(dtype).reshape({2, 2});
    EXPECT_THAT(mask_of(values, 0.5), ElementsAre(1, 0, 0, 1)) << dtype;
    EXPECT_THAT(mask_of(values, 0.5, "filter"), ElementsAre(0, 0, 1, 1)) << dtype;
    EXPECT_THAT(mask_of(values, 0.5, "channel"), ElementsAre(0, 1, 0, 1)) << dtype;
    EXPECT_THAT(mask_of(values, 0.5, "1:2"), ElementsAre(1, 0, 0, 1)) << dtype;
  }
}

TEST(MaskUpdate, BlocksRunAlongTheInputsAtEachKernelPosition) {
  // [1 output, 5 inputs, 2 positions]: blocks of inputs 0-3 and of input 4 alone, at each position.
  const at::Tensor values = floats({4, 1, 4, 1, 4, 1, 4, 1, 3, 2}).reshape({1, 5, 2});
  // Means by block: (0-3, position 0) 4, (0-3, position 1) 1, (4, position 0) 3, (4, position 1) 2.
  EXPECT_THAT(mask_of(values, 0.25, "block4"), ElementsAre(1, 0, 1, 0, 1, 0, 1, 0, 1, 1));
  EXPECT_THAT(mask_of(values, 0.5, "block4"), ElementsAre(1, 0, 1, 0, 1, 0, 1, 0, 1, 0));
  EXPECT_THAT(mask_of(values, 0.75, "block4"), ElementsAre(1, 0, 1, 0, 1, 0, 1, 0, 0, 0));
}

TEST(MaskUpdate, TheLargestGroupOfALayerStaysBelowFullSparsity) {
  const at::Tensor one_input = floats({1, 2, 3}).view({3, 1});
  EXPECT_THAT(mask_of(one_input, 0.5, "channel"), ElementsAre(1, 1, 1));
  EXPECT_THAT(mask_of(one_input, 0.99, "filter"), ElementsAre(0, 0, 1));
  EXPECT_THAT(mask_of(one_input, 1, "channel"), ElementsAre(0, 0, 0));  // asked for in full
  EXPECT_THAT(mask_of(at::ones({2, 2}), 0.9, "filter"),
              ElementsAre(0, 0, 1, 1));  // equal: the last
  EXPECT_THAT(mask_of(floats({1, 1, 9, 9, 2, 2}).view({1, 6}), 0.9, "block2"),
              ElementsAre(0, 0, 1, 1, 0, 0));
  const at::Tensor head = at::arange(30).to(at::kFloat).view({10, 3});
  const std::vector<int> kept = mask_of(head, 0.95, "filter");  // round(9.5) = 10 of 10
  EXPECT_EQ(std::count(kept.begin(), kept.end(), 1), 3);
  EXPECT_THAT(std::vector<int>(kept.end() - 3, kept.end()), ElementsAre(1, 1, 1));
  // A global rule spares each layer's largest; nothing that was pruned comes back.
  const std::vector<MaskedWeight> both{masked(at::full({2, 2}, 0.1)),
                                       masked(at::full({2, 2}, 5.0))};
  update_masks(both, 0.5, {kind("filter"), true});
  EXPECT_THAT(kept_items(both[0]), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(kept_items(both[1]), ElementsAre(1, 1, 1, 1));
  drop_range(both[0].kept_bits.mutable_data_ptr<uint8_t>(), 0, 4);
  update_masks(both, 0.9, {kind("filter"), true});
  EXPECT_THAT(kept_items(both[0]), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(kept_items(both[1]), ElementsAre(0, 0, 1, 1));
}

TEST(MaskUpdate, ACountOfThingsIsThatOfTheGroups) {
  const auto things = [](const char* text, const std::vector<int64_t>& sizes) {
    return kind(text).num_prunable(sizes);
  };
  for (const std::vector<int64_t>& sizes :
       {std::vector<int64_t>{10, 4}, {3, 5}, {8, 6, 3, 3}, {1, 1}}) {
    const at::Tensor values = at::rand(sizes);
    for (const char* text : {"filter", "channel", "block4", "[1, 3]"}) {
      const MaskedWeight weight = masked(values);
      const GroupScores groups =
          score_groups(kind(text), values, weight.kept_bits.const_data_ptr<uint8_t>());
      EXPECT_EQ(things(text, sizes), static_cast<int64_t>(groups.scores.size())) << text;
    }
    EXPECT_EQ(things("unstructured", sizes), values.numel());
    EXPECT_EQ(things("2:4", sizes), 0);
  }
  EXPECT_EQ(things("filter", {}), 0);
}

TEST(MaskUpdate, NOfMStaysInsideItsPattern) {
  // The first group has the smaller weights, yet loses only two of them.
  const at::Tensor values = floats({1, 2, 3, 4, 5, 6, 7, 8}).reshape({1, 8});
  EXPECT_THAT(mask_of(values, 0.25, "2:4"), ElementsAre(0, 0, 1, 1, 1, 1, 1, 1));
  EXPECT_THAT(mask_of(values, 0.375, "2:4"), ElementsAre(0, 0, 1, 1, 0, 1, 1, 1));
  EXPECT_THAT(mask_of(values, 0.5, "2:4"), ElementsAre(0, 0, 1, 1, 0, 0, 1, 1));
  EXPECT_THAT(mask_of(at::ones({1, 8}), 0.5, "2:4"), ElementsAre(0, 0, 1, 1, 0, 0, 1, 1));
}

TEST(MaskUpdate, AGroupEmptiedByAnotherMaskDoesNotKeepTheRestFromThePattern) {
  const MaskedWeight weight = masked(floats({1, 2, 3, 4, 5, 6, 7, 8}).reshape({1, 8}));
  for (const int64_t item : {0, 1, 2, 3}) drop(weight.kept_bits.mutable_data_ptr<uint8_t>(), item);
  update_masks({&weight, 1}, 0.5, {kind("2:4"), false});
  EXPECT_THAT(kept_items(weight), ElementsAre(0, 0, 0, 0, 0, 0, 1, 1));
}

TEST(MaskUpdate, AGlobalRuleComparesAllWeights) {
  const std::vector<MaskedWeight> weights{masked(floats({1, 10, 11, 12}).reshape({2, 2})),
                                          masked(floats({2, 3, 20, 1}).reshape({2, 2}))};
  update_masks(weights, 0.375, {kind("unstructured"), true});
  EXPECT_THAT(kept_items(weights[0]), ElementsAre(0, 1, 1, 1));
  EXPECT_THAT(kept_items(weights[1]), ElementsAre(0, 1, 1, 0));
}

TEST(MaskUpdate, AGlobalRuleOverSeveralTypesComparesTheirValues) {
  const std::vector<MaskedWeight> weights{masked(floats({1, 4}).to(at::kBFloat16)),
                                          masked(floats({2, 3}).to(at::kDouble)),
                                          masked(floats({0.5, 8}))};
  update_masks(weights, 0.5, {kind("unstructured"), true});
  EXPECT_THAT(kept_items(weights[0]), ElementsAre(0, 1));
  EXPECT_THAT(kept_items(weights[1]), ElementsAre(0, 1));
  EXPECT_THAT(kept_items(weights[2]), ElementsAre(0, 1));
}

TEST(MaskUpdate, WhatItCannotReadIsABug) {
  const MaskedWeight integers = masked(at::ones({4}, at::kInt));
  EXPECT_THROW(update_masks({&integers, 1}, 0.5, {}), Error);
  const MaskedWeight turned = masked(at::ones({2, 3}).t());
  EXPECT_THROW(update_masks({&turned, 1}, 0.5, {}), Error);
}

// Against the definitions: every kind, over odd shapes, ties and NaN, repeated.

/// Few levels, so that there are ties and zeros; exact in every type.
at::Tensor random_values(const CounterRandom& random, uint64_t* draw, at::IntArrayRef sizes) {
  const at::Tensor values = at::empty(sizes);
  const uint64_t num_levels = 1 + random.below((*draw)++, 40);
  for (int64_t i = 0; i < values.numel(); ++i) {
    const auto level = static_cast<float>(random.below((*draw)++, num_levels));
    const float value = random.below((*draw)++, 100) == 0 ? std::nanf("") : level / 8;
    values.view(-1)[i] = random.below((*draw)++, 2) == 0 ? value : -value;
  }
  return values;
}

std::vector<int64_t> random_sizes(const CounterRandom& random, uint64_t* draw,
                                  const MaskKind& mask_kind) {
  const auto between = [&](uint64_t first, uint64_t last) {
    return static_cast<int64_t>(first + random.below((*draw)++, last - first + 1));
  };
  std::vector<int64_t> sizes{between(1, 6), between(1, 11)};
  if (mask_kind.pattern == MaskPattern::kNofM) sizes[1] = mask_kind.m * between(1, 3);
  for (int64_t i = between(0, 2); i > 0; --i) sizes.push_back(between(1, 3));
  return sizes;
}

struct Case {
  std::string kind_text;
  bool global;
};

class MaskUpdateOfKind : public ::testing::TestWithParam<Case> {};

TEST_P(MaskUpdateOfKind, EqualsItsDefinitionOverRepeatedUpdates) {
  const MaskKind mask_kind = kind(GetParam().kind_text);
  const double most = mask_kind.pattern == MaskPattern::kNofM
                          ? 1 - static_cast<double>(mask_kind.n) / static_cast<double>(mask_kind.m)
                          : 1;
  const CounterRandom random{11};
  uint64_t draw = 0;
  const std::vector<at::ScalarType> types{at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};
  for (int round = 0; round < 40; ++round) {
    std::vector<MaskedWeight> weights;
    MaskOracle oracle{mask_kind, {}, {}};
    for (uint64_t w = 0; w < (GetParam().global ? 3 : 1); ++w) {
      const at::Tensor values =
          random_values(random, &draw, random_sizes(random, &draw, mask_kind));
      weights.push_back(masked(values.to(types[random.below(draw++, types.size())])));
      oracle.values.push_back(values.to(at::kDouble));
      oracle.kept.emplace_back(static_cast<size_t>(values.numel()), 1);
      // Every other round another kind of mask was there before.
      for (int64_t item = 0; item < (round % 2) * values.numel(); ++item)
        if (random.below(draw++, 4) == 0) {
          drop(weights.back().kept_bits.mutable_data_ptr<uint8_t>(), item);
          oracle.prune(oracle.kept.size() - 1, item);
        }
    }
    double sparsity = 0;
    for (int update = 0; update < 4; ++update) {
      sparsity = update == 3 ? most : sparsity + (most - sparsity) * random.uniform(draw++);
      update_masks(weights, sparsity, {mask_kind, GetParam().global});
      oracle.update(sparsity);
      for (size_t w = 0; w < weights.size(); ++w) {
        ASSERT_EQ(kept_items(weights[w]), oracle.kept[w])
            << "round " << round << ", update " << update << ", sparsity " << sparsity
            << ", weight " << w << " " << weights[w].values.sizes();
        // Weights move on before the next update.
        const at::Tensor moved = random_values(random, &draw, weights[w].values.sizes());
        weights[w].values.copy_(moved);
        oracle.values[w].copy_(moved);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, MaskUpdateOfKind,
                         ::testing::Values(Case{"unstructured", false}, Case{"unstructured", true},
                                           Case{"block4", false}, Case{"block4", true},
                                           Case{"1:2", false}, Case{"2:4", false},
                                           Case{"2:4", true}, Case{"3:7", false},
                                           Case{"filter", false}, Case{"filter", true},
                                           Case{"channel", false}, Case{"channel", true}),
                         [](const auto& test) {
                           std::string name = test.param.kind_text;
                           std::replace(name.begin(), name.end(), ':', 'o');
                           return name + (test.param.global ? "_global" : "");
                         });

TEST(MaskUpdate, TheFullPatternStandsAtItsSparsity) {
  at::manual_seed(3);
  const MaskedWeight weight = masked(at::randn({16, 24, 3, 3}));
  for (const double sparsity : {0.2, 0.45, 0.5}) {
    update_masks({&weight, 1}, sparsity, {kind("2:4"), false});
    const at::Tensor kept_by_group =
        kept_flags(weight.kept_bits, {16, 6, 4, 9}).to(at::kLong).sum(2);
    EXPECT_GE(kept_by_group.min().item<int64_t>(), 2);
    EXPECT_EQ(kept_by_group.sum().item<int64_t>(), 3456 - std::llround(sparsity * 3456));
  }
}

// Transposable masks.

/// Sum of the magnitudes that the best selection of a tile prunes, by trying all 2^16 selections.
/// Elements already pruned must be among them as far as that is possible.
double least_sum(const at::Tensor& tile, const at::Tensor& living) {
  double best = INFINITY;
  int64_t most_pruned = -1;
  for (unsigned chosen = 0; chosen < 1U << 16; ++chosen) {
    std::array<int, 8> counts{};
    for (size_t i = 0; i < 16; ++i)
      if ((chosen >> i & 1U) != 0) {
        ++counts[i / 4];
        ++counts[4 + i % 4];
      }
    if (std::any_of(counts.begin(), counts.end(), [](int count) { return count != 2; })) continue;
    double sum = 0;
    int64_t num_pruned = 0;
    for (int64_t i = 0; i < 16; ++i) {
      if ((chosen >> i & 1U) == 0) continue;
      const bool is_living = living.view(-1)[i].item<bool>();
      num_pruned += is_living ? 0 : 1;
      sum += is_living ? std::fabs(tile.reshape(-1)[i].item<double>()) : 0;
    }
    if (num_pruned < most_pruned || (num_pruned == most_pruned && sum >= best)) continue;
    most_pruned = num_pruned;
    best = sum;
  }
  return best;
}

at::Tensor flags_of(const MaskedWeight& weight) {
  return kept_flags(weight.kept_bits, weight.values.sizes()).to(at::kBool);
}

TEST(TransposableMask, PrunesTheLeastThatAnySelectionDoes) {
  at::manual_seed(11);
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16})
    for (const double share : {0.0, 0.1, 0.4}) {
      const MaskedWeight weight = masked(at::randn({8, 16}).to(type));
      for (int64_t i = 0; i < 128; ++i)
        if (at::rand({}).item<double>() < share)
          drop(weight.kept_bits.mutable_data_ptr<uint8_t>(), i);
      const at::Tensor before = flags_of(weight), values = weight.values.clone();
      update_masks({&weight, 1}, 0.5, {kind("2:4 transposable"), false});
      EXPECT_TRUE(at::equal(weight.values, values));
      const at::Tensor lost = before.logical_and(flags_of(weight).logical_not());
      for (int64_t row = 0; row < 8; row += 4)
        for (int64_t column = 0; column < 16; column += 4) {
          const auto tile = [&](const at::Tensor& of) {
            return of.narrow(0, row, 4).narrow(1, column, 4);
          };
          const double sum =
              (tile(weight.values.to(at::kDouble)).abs() * tile(lost)).sum().item<double>();
          EXPECT_NEAR(sum, least_sum(tile(weight.values), tile(before).contiguous()), 1e-9)
              << type << " " << share;
        }
    }
}

TEST(TransposableMask, GrowsToTheFullPatternWhileWeightsMove) {
  at::manual_seed(5);
  for (const bool global : {false, true}) {
    const std::vector<MaskedWeight> weights{masked(at::randn({32, 48})),
                                            masked(at::randn({16, 16}))};
    for (const double sparsity : {0.1, 0.3, 0.45, 0.5}) {
      const at::Tensor before = flags_of(weights[0]);
      update_masks(weights, sparsity, {kind("2:4 transposable"), global});
      const at::Tensor kept = flags_of(weights[0]);
      EXPECT_FALSE(kept.logical_and(before.logical_not()).any().item<bool>());  // nothing regrows
      const int64_t num = (kept.sum() + flags_of(weights[1]).sum()).item<int64_t>();
      if (global) {
        EXPECT_EQ(num, 1792 - std::llround(sparsity * 1792));
      } else {
        EXPECT_EQ(kept.sum().item<int64_t>(), 1536 - std::llround(sparsity * 1536));
      }
      // At least two of four along both dimensions.
      EXPECT_GE(kept.view({32, 12, 4}).sum(2).min().item<int64_t>(), 2);
      EXPECT_GE(kept.view({8, 4, 48}).sum(1).min().item<int64_t>(), 2);
      for (const MaskedWeight& weight : weights) weight.values.normal_();
    }
    for (const MaskedWeight& weight : weights) {
      const at::Tensor kept = flags_of(weight);
      EXPECT_TRUE(kept.view({-1, 4}).sum(1).eq(2).all().item<bool>());
      EXPECT_TRUE(kept.t().contiguous().view({-1, 4}).sum(1).eq(2).all().item<bool>());
    }
  }
}

TEST(TransposableMask, TiesAndNumbersThatAreNone) {
  // Equal magnitudes: the first in memory are pruned first.
  EXPECT_THAT(mask_of(at::ones({4, 4}), 0.5, "2:4 transposable"),
              ElementsAre(0, 0, 1, 1, 0, 0, 1, 1, 1, 1, 0, 0, 1, 1, 0, 0));
  at::Tensor values = at::ones({4, 4});
  values[0][0] = std::nanf("");
  values[1][1] = INFINITY;
  values[2][0] = -INFINITY;
  values[3][1] = 1e38F;
  const std::vector<int> kept = mask_of(values, 0.5, "2:4 transposable");
  for (const size_t item : {0, 5, 8, 13}) EXPECT_EQ(kept[item], 1) << item;
}

TEST(TransposableMask, RanksAgreeHoweverTheyDivideTheWork) {
  EXPECT_EQ(kind("2:4 transposable").text(), "2:4 transposable");
  EXPECT_EQ(kind("2:4transposable"), kind("2:4 transposable"));
  EXPECT_FALSE(kind("2:4") == kind("2:4 transposable"));
  EXPECT_FALSE(MaskKind::parse("1:4 transposable").has_value());
  // Slower than other masks, so that two ranks share the work.
  const std::vector<int64_t> sizes{1 << 20, 1 << 20};
  EXPECT_TRUE(division_pays({kind("2:4 transposable"), false}, sizes, 2));
}

}  // namespace mask_update_test
}  // namespace lockstep::recal
