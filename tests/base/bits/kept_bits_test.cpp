#include "base/simd/bit_mask.h"

#include <vector>

#include <gtest/gtest.h>

namespace lockstep {
namespace kept_bits_test {

TEST(KeptBits, AnyRangeGoesToAnyPlaceAndNothingElseChanges) {
  std::vector<uint8_t> from(8), before(8);
  for (size_t i = 0; i < 8; ++i) {
    from[i] = static_cast<uint8_t>(i * 89 + 37);
    before[i] = static_cast<uint8_t>(i * 151 + 11);
  }
  for (int64_t from_item = 0; from_item < 20; ++from_item)
    for (int64_t to_item = 0; to_item < 20; ++to_item)
      for (int64_t num_items = 0; num_items <= 44; ++num_items) {
        std::vector<uint8_t> to = before;
        copy_bits(from.data(), from_item, num_items, to.data(), to_item);
        for (int64_t i = 0; i < 64; ++i) {
          const bool inside = i >= to_item && i < to_item + num_items;
          const bool expected =
              inside ? is_kept(from.data(), from_item + i - to_item) : is_kept(before.data(), i);
          ASSERT_EQ(is_kept(to.data(), i), expected)
              << from_item << " " << to_item << " " << num_items << " " << i;
        }
      }
}

TEST(KeptBits, ReadsNoByteBehindTheLastBit) {
  const std::vector<uint8_t> from{0xff};  // a sanitizer sees a read behind it
  uint8_t to = 0;
  copy_bits(from.data(), 3, 5, &to, 0);
  EXPECT_EQ(to, 0x1f);
}

}  // namespace kept_bits_test
}  // namespace lockstep
