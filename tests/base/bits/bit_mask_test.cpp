#include "base/simd/bit_mask.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gmock/gmock.h>

#include "base/error.h"
#include "base/random.h"
#include "base/simd/bit_mask_kernels.h"

namespace lockstep {
namespace bit_mask_test {

using ::testing::Each;
using ::testing::ElementsAre;

/// Sizes around the widths of bytes, words and vectors.
const std::vector<int64_t> kSizes{0, 1, 7, 8, 9, 15, 16, 17, 63, 64, 65, 100, 127, 128, 129, 1000};

template <typename Item>
std::vector<Item> random_items(int64_t num_items, int64_t seed) {
  const CounterRandom random{seed};
  std::vector<Item> items(static_cast<size_t>(num_items));
  for (size_t i = 0; i < items.size(); ++i) items[i] = static_cast<Item>(random.bits(i));
  return items;
}

/// Each item kept with this chance; a byte behind the mask shows writes beyond it.
std::vector<uint8_t> random_mask(int64_t num_items, double kept, int64_t seed) {
  const CounterRandom random{seed};
  std::vector<uint8_t> bits(static_cast<size_t>(num_mask_bytes(num_items)));
  for (int64_t i = 0; i < num_items; ++i)
    if (random.uniform(static_cast<uint64_t>(i)) < kept)
      bits[static_cast<size_t>(i / 8)] |= static_cast<uint8_t>(1U << (i % 8));
  return bits;
}

constexpr uint8_t kGuard = 0xa5;

template <typename Item>
class BitMaskKernelsTest : public ::testing::Test {
 protected:
  /// Calls test(kernels, num_items, bits) for every path of this machine, size and density.
  template <typename Test>
  void for_each_case(const Test& test) {
    for (const SimdPath path : simd_paths())
      for (const int64_t num_items : kSizes)
        for (const double kept : {0.0, 0.02, 0.1, 0.5, 1.0}) {
          SCOPED_TRACE(::testing::Message() << "path " << name_of(path) << ", " << num_items
                                            << " items, " << kept << " kept");
          test(bit_mask_kernels(path, sizeof(Item)), num_items, random_mask(num_items, kept, 3));
        }
  }
};

using Widths = ::testing::Types<uint16_t, uint32_t, uint64_t>;
TYPED_TEST_SUITE(BitMaskKernelsTest, Widths);

TYPED_TEST(BitMaskKernelsTest, KeepNonzeroTakesEitherZeroForZero) {
  using Item = TypeParam;
  constexpr Item kNegativeZero = Item{1} << (8 * sizeof(Item) - 1);
  this->for_each_case(
      [](const BitMaskKernels& kernels, int64_t num_items, const std::vector<uint8_t>& expected) {
        std::vector<Item> items = random_items<Item>(num_items, 5);
        for (int64_t i = 0; i < num_items; ++i) {
          Item& item = items[static_cast<size_t>(i)];
          if (!is_kept(expected.data(), i))
            item = i % 2 == 0 ? Item{0} : kNegativeZero;
          else if ((item & static_cast<Item>(~kNegativeZero)) == 0)
            item = 1;
        }
        std::vector<uint8_t> bits(expected.size() + 1, kGuard);
        kernels.keep_nonzero(items.data(), num_items, bits.data());
        EXPECT_EQ(bits.back(), kGuard);
        bits.pop_back();
        EXPECT_EQ(bits, expected);
      });
}

TYPED_TEST(BitMaskKernelsTest, ZeroPrunedTouchesNothingElse) {
  using Item = TypeParam;
  this->for_each_case(
      [](const BitMaskKernels& kernels, int64_t num_items, const std::vector<uint8_t>& bits) {
        std::vector<Item> items = random_items<Item>(num_items + 1, 5);
        std::vector<Item> expected = items;
        for (int64_t i = 0; i < num_items; ++i)
          if (!is_kept(bits.data(), i)) expected[static_cast<size_t>(i)] = 0;
        kernels.zero_pruned(items.data(), bits.data(), num_items);
        EXPECT_EQ(items, expected);
        kernels.zero_pruned(items.data(), bits.data(), num_items);  // nothing left to do
        EXPECT_EQ(items, expected);
      });
}

TYPED_TEST(BitMaskKernelsTest, PackThenUnpack) {
  using Item = TypeParam;
  this->for_each_case(
      [](const BitMaskKernels& kernels, int64_t num_items, const std::vector<uint8_t>& bits) {
        const std::vector<Item> items = random_items<Item>(num_items, 5);
        std::vector<Item> expected;
        for (int64_t i = 0; i < num_items; ++i)
          if (is_kept(bits.data(), i)) expected.push_back(items[static_cast<size_t>(i)]);
        const auto num_kept = static_cast<int64_t>(expected.size());
        ASSERT_EQ(kernels.count_kept(bits.data(), num_items), num_kept);

        expected.push_back(77);  // behind the packed items nothing is written
        std::vector<Item> packed(expected.size(), 77);
        EXPECT_EQ(kernels.pack_kept(items.data(), bits.data(), num_items, packed.data()), num_kept);
        EXPECT_EQ(packed, expected);

        std::vector<Item> unpacked(static_cast<size_t>(num_items) + 1, 99);
        EXPECT_EQ(kernels.unpack_kept(packed.data(), bits.data(), num_items, unpacked.data()),
                  num_kept);
        std::vector<Item> masked = items;
        masked.push_back(99);
        kernels.zero_pruned(masked.data(), bits.data(), num_items);
        EXPECT_EQ(unpacked, masked);
      });
}

TYPED_TEST(BitMaskKernelsTest, FindKept) {
  this->for_each_case(
      [](const BitMaskKernels& kernels, int64_t num_items, const std::vector<uint8_t>& bits) {
        std::vector<uint32_t> expected;
        for (int64_t i = 0; i < num_items; ++i)
          if (is_kept(bits.data(), i)) expected.push_back(static_cast<uint32_t>(i));
        const size_t num_kept = expected.size();
        std::vector<uint32_t> places(num_kept + kPlaceSlack + 1, 77);
        EXPECT_EQ(kernels.find_kept(bits.data(), num_items, places.data()),
                  static_cast<int64_t>(num_kept));
        EXPECT_EQ(places.back(), 77);  // behind the slack nothing is written
        places.resize(num_kept);
        EXPECT_EQ(places, expected);
      });
}

/// Items of several blocks, of which some keep few: whatever walks them, only kept ones move.
template <typename Item>
void expect_packed_and_back(const std::vector<double>& kept_by_block) {
  constexpr int64_t kBlock = 32768;
  const int64_t num_items = kBlock * static_cast<int64_t>(kept_by_block.size()) - 1003;
  std::vector<uint8_t> bits;
  for (size_t block = 0; block < kept_by_block.size(); ++block) {
    const auto some = random_mask(kBlock, kept_by_block[block], static_cast<int64_t>(block));
    bits.insert(bits.end(), some.begin(), some.end());
  }
  bits.resize(static_cast<size_t>(num_mask_bytes(num_items)));
  clear_behind_end(bits.data(), num_items);
  const std::vector<Item> items = random_items<Item>(num_items, 5);
  std::vector<Item> expected, zeroed = items;
  for (int64_t i = 0; i < num_items; ++i)
    if (is_kept(bits.data(), i))
      expected.push_back(items[static_cast<size_t>(i)]);
    else
      zeroed[static_cast<size_t>(i)] = 0;
  const auto num_kept = static_cast<int64_t>(expected.size());
  std::vector<Item> packed(expected.size());
  EXPECT_EQ(pack_kept(items.data(), bits.data(), num_items, sizeof(Item), packed.data()), num_kept);
  EXPECT_EQ(packed, expected);

  std::vector<Item> unpacked(items.size() + 1, 99), put = unpacked;
  EXPECT_EQ(unpack_kept(packed.data(), bits.data(), num_items, sizeof(Item), unpacked.data()),
            num_kept);
  EXPECT_EQ(put_kept(packed.data(), bits.data(), num_items, sizeof(Item), put.data()), num_kept);
  EXPECT_EQ(unpacked.back(), 99);
  EXPECT_EQ(put.back(), 99);
  unpacked.pop_back();
  EXPECT_EQ(unpacked, zeroed);
  for (int64_t i = 0; i < num_items; ++i) {
    const auto at = static_cast<size_t>(i);
    ASSERT_TRUE(put[at] == items[at] ||
                (!is_kept(bits.data(), i) && (put[at] == 99 || put[at] == 0)))
        << i;
  }
}

TYPED_TEST(BitMaskKernelsTest, BlocksThatKeepFewAreWalkedByPlace) {
  for (const std::vector<double>& kept_by_block :
       {std::vector<double>{0.01, 0.5, 0.0, 0.05, 0.99}, std::vector<double>{0.01, 0.005},
        std::vector<double>{0.9, 0.0}, std::vector<double>{1 / 64.0, 1 / 64.0, 0.015, 0.017}})
    expect_packed_and_back<TypeParam>(kept_by_block);
}

TEST(BitMask, ItemIIsBitIModulo8OfByteIOver8) {
  const std::vector<float> items{0, 1, 0, 0, 0, 0, 0, 2, -3, 0};
  std::vector<uint8_t> bits(2);
  keep_nonzero(items.data(), 10, 4, bits.data());
  EXPECT_THAT(bits, ElementsAre(0x82, 0x01));
  EXPECT_TRUE(is_kept(bits.data(), 8));
  drop(bits.data(), 8);
  EXPECT_FALSE(is_kept(bits.data(), 8));
  EXPECT_EQ(count_kept(bits.data(), 10), 2);
}

TEST(BitMask, ApplyLeavesPositiveZerosOverAnyFloat) {
  std::vector<float> items(70, -1.0F);
  items[0] = std::nanf("");
  items[1] = -0.0F;
  items[66] = std::numeric_limits<float>::infinity();
  const std::vector<uint8_t> bits(9, 0);
  zero_pruned(items.data(), bits.data(), 70, 4);
  std::vector<uint32_t> found(70);
  std::memcpy(found.data(), items.data(), 70 * sizeof(float));
  EXPECT_THAT(found, Each(0U));
}

TEST(BitMask, NotANumberAndTheSmallestNumberAreNotZero) {
  const std::vector<float> items{std::nanf(""), std::numeric_limits<float>::denorm_min(), -0.0F};
  uint8_t bits = 0;
  keep_nonzero(items.data(), 3, 4, &bits);
  EXPECT_EQ(bits, 0b011);
}

TEST(BitMask, BitsBehindTheEndAreZero) {
  for (const int64_t num_items : kSizes) {
    std::vector<uint8_t> bits(static_cast<size_t>(num_mask_bytes(num_items)) + 1, kGuard);
    keep_all(bits.data(), num_items);
    EXPECT_EQ(count_kept(bits.data(), num_items), num_items);
    EXPECT_EQ(bits.back(), kGuard);
    std::fill(bits.begin(), bits.end() - 1, 0xff);
    clear_behind_end(bits.data(), num_items);
    EXPECT_EQ(count_kept(bits.data(), num_items), num_items);
    EXPECT_EQ(bits.back(), kGuard);
  }
}

TEST(BitMask, DropsRanges) {
  for (int64_t first = 0; first < 40; ++first)
    for (int64_t num = 0; first + num <= 40; ++num) {
      std::vector<uint8_t> bits(5, 0xff);
      std::vector<uint8_t> expected = bits;
      for (int64_t i = first; i < first + num; ++i) drop(expected.data(), i);
      drop_range(bits.data(), first, num);
      ASSERT_EQ(bits, expected) << first << " " << num;
    }
}

TEST(BitMask, AnotherWidthIsABug) { EXPECT_THROW(bit_mask_kernels(SimdPath::kPortable, 1), Error); }

TEST(Simd, ThePortablePathIsAlwaysThere) {
  EXPECT_EQ(simd_paths().front(), SimdPath::kPortable);
  EXPECT_EQ(simd_paths().back(), fastest_simd_path());
}

}  // namespace bit_mask_test
}  // namespace lockstep
