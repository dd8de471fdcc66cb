#include "recal/masks/magnitude_threshold.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/random.h"
#include "base/simd/bit_mask.h"
#include "recal/masks/magnitude_kernels.h"

namespace lockstep::recal {
namespace magnitude_threshold_test {

template <typename Bits>
struct Values {
  std::vector<Bits> items;
  std::vector<uint8_t> kept;

  MagnitudePart<Bits> part() {
    return {items.data(), kept.data(), static_cast<int64_t>(items.size())};
  }
};

template <typename Bits>
std::vector<MagnitudePart<Bits>> parts_of(std::vector<Values<Bits>>* values) {
  std::vector<MagnitudePart<Bits>> parts;
  for (Values<Bits>& one : *values) parts.push_back(one.part());
  return parts;
}

/// The definition, by a stable sort of all kept items of all parts.
template <typename Bits>
std::vector<std::vector<uint8_t>> brute_force(const std::vector<Values<Bits>>& values,
                                              int64_t num_smallest) {
  struct Place {
    Bits magnitude;
    size_t part, item;
  };
  std::vector<Place> order;
  std::vector<std::vector<uint8_t>> kept;
  for (size_t p = 0; p < values.size(); ++p) {
    kept.push_back(values[p].kept);
    for (size_t i = 0; i < values[p].items.size(); ++i)
      if (is_kept(values[p].kept.data(), static_cast<int64_t>(i)))
        order.push_back({magnitude(values[p].items[i]), p, i});
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const Place& a, const Place& b) { return a.magnitude < b.magnitude; });
  for (int64_t i = 0; i < num_smallest; ++i) {
    const Place& place = order[static_cast<size_t>(i)];
    drop(kept[place.part].data(), static_cast<int64_t>(place.item));
  }
  return kept;
}

template <typename Bits>
int64_t num_kept(const std::vector<Values<Bits>>& values) {
  int64_t num = 0;
  for (const Values<Bits>& one : values)
    num += count_kept(one.kept.data(), static_cast<int64_t>(one.items.size()));
  return num;
}

template <typename Bits>
void expect_exact(const std::vector<Values<Bits>>& values, int64_t num_smallest) {
  const std::vector<std::vector<uint8_t>> expected = brute_force(values, num_smallest);
  for (const SimdPath path : simd_paths()) {
    std::vector<Values<Bits>> mine = values;
    const std::vector<MagnitudePart<Bits>> parts = parts_of(&mine);
    drop_smallest<Bits>(std::span(parts), num_smallest, path);
    for (size_t p = 0; p < mine.size(); ++p)
      ASSERT_EQ(mine[p].kept, expected[p])
          << "path " << name_of(path) << ", part " << p << ", " << num_smallest;
  }
}

/// Items from few levels (many ties) or of random bits (every exponent, NaN and infinity too).
template <typename Bits>
Values<Bits> random_values(int64_t num_items, uint64_t num_levels, double kept, int64_t seed) {
  const CounterRandom random{seed, num_items};
  Values<Bits> values;
  values.kept.resize(static_cast<size_t>(num_mask_bytes(num_items)));
  for (int64_t i = 0; i < num_items; ++i) {
    const uint64_t bits = random.bits(2 * static_cast<uint64_t>(i));
    values.items.push_back(static_cast<Bits>(num_levels > 0 ? bits % num_levels : bits));
    if (random.uniform(2 * static_cast<uint64_t>(i) + 1) < kept)
      values.kept[static_cast<size_t>(i / 8)] |= static_cast<uint8_t>(1U << (i % 8));
  }
  return values;
}

template <typename Bits>
class MagnitudeThreshold : public ::testing::Test {};

using Widths = ::testing::Types<uint16_t, uint32_t, uint64_t>;
TYPED_TEST_SUITE(MagnitudeThreshold, Widths);

TYPED_TEST(MagnitudeThreshold, EqualsAStableSort) {
  for (const int64_t num_items : {1, 2, 9, 63, 64, 65, 200, 1000})
    for (const uint64_t num_levels : {uint64_t{0}, uint64_t{1}, uint64_t{3}, uint64_t{40}})
      for (const double kept : {0.2, 1.0}) {
        const std::vector<Values<TypeParam>> values{
            random_values<TypeParam>(num_items, num_levels, kept, 1)};
        const int64_t most = num_kept(values);
        for (const int64_t num : {int64_t{0}, int64_t{1}, most / 2, most - 1, most})
          if (num >= 0 && num <= most) expect_exact(values, num);
      }
}

TYPED_TEST(MagnitudeThreshold, OfSeveralPartsTheFirstLosesItsTiesFirst) {
  const std::vector<Values<TypeParam>> values{
      random_values<TypeParam>(70, 3, 0.9, 1), random_values<TypeParam>(0, 3, 0.9, 2),
      random_values<TypeParam>(130, 3, 0.5, 3), random_values<TypeParam>(5, 3, 1, 4)};
  for (int64_t num = 0; num <= num_kept(values); num += 3) expect_exact(values, num);
}

/// Enough items that a sample brackets the threshold.
TYPED_TEST(MagnitudeThreshold, EqualsAStableSortWhereItSamples) {
  for (const uint64_t num_levels : {uint64_t{0}, uint64_t{1}, uint64_t{7}, uint64_t{30'000}}) {
    const std::vector<Values<TypeParam>> values{
        random_values<TypeParam>(70'001, num_levels, 0.9, 1),
        random_values<TypeParam>(300, num_levels, 0.9, 2),
        random_values<TypeParam>(30'000, num_levels, 0.3, 3)};
    const int64_t most = num_kept(values);
    for (const double fraction : {0.0001, 0.1, 0.5, 0.9, 0.999, 1.0})
      expect_exact(values, static_cast<int64_t>(static_cast<double>(most) * fraction));
  }
}

/// Rising values at the sample's places only: whatever they are, the result is exact.
TYPED_TEST(MagnitudeThreshold, ASampleThatMisleadsCostsTimeOnly) {
  Values<TypeParam> sorted = random_values<TypeParam>(60'000, 0, 1, 1);
  std::sort(sorted.items.begin(), sorted.items.end());
  expect_exact<TypeParam>({sorted}, 54'000);
  // The sampled part says nothing of the many small ones, which are left out of the sample.
  std::vector<Values<TypeParam>> values{random_values<TypeParam>(20'000, 5, 1, 1)};
  for (int64_t i = 0; i < 4'000; ++i)
    values.push_back(random_values<TypeParam>(10, 30'000, 1, 2 + i));
  for (const int64_t num : {10'000, 30'000, 50'000}) expect_exact(values, num);
}

TYPED_TEST(MagnitudeThreshold, MoreThanThereAreIsABug) {
  std::vector<Values<TypeParam>> values{random_values<TypeParam>(10, 0, 1, 1)};
  const std::vector<MagnitudePart<TypeParam>> parts = parts_of(&values);
  EXPECT_THROW(drop_smallest<TypeParam>(std::span(parts), 11), Error);
}

TYPED_TEST(MagnitudeThreshold, CollectStopsWhereTheRoomEndsAndCountsOn) {
  Values<TypeParam> values = random_values<TypeParam>(1000, 100, 0.9, 1);
  const Bracket<TypeParam> bracket{20, 59};
  std::vector<TypeParam> expected;
  int64_t num_below = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    const TypeParam item = values.items[static_cast<size_t>(i)];
    if (!is_kept(values.kept.data(), i)) continue;
    num_below += item < 20 ? 1 : 0;
    if (item >= 20 && item <= 59) expected.push_back(item);
  }
  for (const SimdPath path : simd_paths())
    for (const int64_t room : {0, 1, 100, 350, 1000}) {
      std::vector<TypeParam> inside(static_cast<size_t>(room + kCollectSlack));
      const BracketCounts counts = magnitude_kernels<TypeParam>(path).collect(
          values.items.data(), values.kept.data(), 1000, bracket, inside.data(), room);
      EXPECT_EQ(counts.num_below, num_below);
      ASSERT_EQ(counts.num_inside, static_cast<int64_t>(expected.size()));
      const auto num_stored = std::min(static_cast<size_t>(room), expected.size());
      inside.resize(num_stored);
      EXPECT_EQ(inside, std::vector<TypeParam>(expected.begin(),
                                               expected.begin() + static_cast<long>(num_stored)));
    }
}

TEST(MagnitudeThresholdOfFloats, IsKthvalueOfTheMagnitudes) {
  at::manual_seed(4);
  const at::Tensor values = at::randn({100'000});
  std::vector<uint8_t> kept(12'500, 0xff);
  const std::vector<MagnitudePart<uint32_t>> parts{
      {static_cast<const uint32_t*>(values.const_data_ptr()), kept.data(), 100'000}};
  for (const int64_t k : {1, 500, 50'000, 90'000, 100'000}) {
    const Threshold<uint32_t> found = find_threshold<uint32_t>(std::span(parts), k);
    float limit = 0;
    std::memcpy(&limit, &found.limit, sizeof(limit));
    EXPECT_EQ(limit, std::get<0>(at::kthvalue(values.abs(), k)).item<float>());
    EXPECT_EQ(found.num_ties, k - at::lt(values.abs(), limit).sum().item<int64_t>());
  }
}

}  // namespace magnitude_threshold_test
}  // namespace lockstep::recal
