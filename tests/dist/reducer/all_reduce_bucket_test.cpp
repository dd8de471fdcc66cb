#include "dist/reducer/bucket_reduction.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/simd/bit_mask.h"

namespace lockstep::dist {
namespace all_reduce_bucket_test {

constexpr int64_t kElements = 77;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Mask that keeps every third of `num_items` items.
std::vector<uint8_t> every_third(int64_t num_items) {
  std::vector<uint8_t> bits(static_cast<size_t>(num_mask_bytes(num_items)));
  keep_all(bits.data(), num_items);
  for (int64_t i = 0; i < num_items; ++i)
    if (i % 3 != 0) drop(bits.data(), i);
  return bits;
}

at::Tensor numbers(at::ScalarType dtype = at::kFloat) {
  return at::sin(at::arange(kElements, at::kFloat) + 1).mul(5).to(dtype);
}

/// Reduces as a world of `num_ranks` ranks with equal gradients would.
bool carry(AllReduceBucket* bucket, bool packed, int64_t num_samples, int num_ranks = 1) {
  const at::Tensor travelling = bucket->pack(packed);
  travelling.copy_(travelling.to(at::kFloat) * num_ranks);
  return bucket->unpack(num_samples, Dropped::kZero);
}

TEST(AllReduceBucket, DenseGradientsTravelThemselves) {
  at::Tensor grads = numbers();
  const at::Tensor expected = grads * 2 / 3;
  AllReduceBucket bucket(grads, {});
  EXPECT_FALSE(bucket.can_pack());
  EXPECT_EQ(bucket.pack(false).data_ptr(), grads.data_ptr());
  EXPECT_EQ(bucket.payload_bytes(), kElements * 4);
  EXPECT_TRUE(carry(&bucket, false, 3, 2));
  EXPECT_TRUE(grads.equal(expected));
  EXPECT_THROW(bucket.pack(true), Error) << "nothing to leave out";
}

TEST(AllReduceBucket, PackedGradientsAreTheKeptOnesInOrder) {
  at::Tensor grads = numbers();
  const at::Tensor kept = grads.slice(0, 0, kElements, 3).clone();
  AllReduceBucket bucket(grads, {});
  bucket.set_kept(every_third(kElements).data(), 0);
  EXPECT_TRUE(bucket.can_pack());
  EXPECT_TRUE(bucket.pack(true).equal(kept));
  EXPECT_EQ(bucket.payload_bytes(), 26 * 4);
  EXPECT_TRUE(carry(&bucket, true, 4));
  at::Tensor expected = at::zeros({kElements});
  expected.slice(0, 0, kElements, 3).copy_(kept / 4);
  EXPECT_TRUE(grads.equal(expected)) << grads;
}

/// All ways, types and wires: the same bits packed and dense.
TEST(AllReduceBucket, PackedIsDenseBitForBit) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf})
    for (const std::optional<at::ScalarType> wire :
         {std::optional<at::ScalarType>(), std::optional(at::kBFloat16)})
      for (const int64_t first_item : {0, 5, 64}) {
        const std::vector<uint8_t> bits = every_third(first_item + kElements);
        at::Tensor dense = numbers(dtype), packed = numbers(dtype);
        AllReduceBucket dense_reduction(dense, wire), packed_reduction(packed, wire);
        dense_reduction.set_kept(bits.data(), first_item);
        packed_reduction.set_kept(bits.data(), first_item);
        EXPECT_TRUE(carry(&dense_reduction, false, 7, 3));
        EXPECT_TRUE(carry(&packed_reduction, true, 7, 3));
        EXPECT_TRUE(packed.equal(dense)) << packed << dense;
        EXPECT_LT(packed_reduction.payload_bytes() * 2, dense_reduction.payload_bytes());
        for (int64_t i = 0; i < kElements; ++i) {
          const double value = packed[i].item<double>();
          if ((first_item + i) % 3 != 0)
            EXPECT_TRUE(value == 0 && !std::signbit(value)) << i;
          else
            EXPECT_NE(value, 0) << i;
        }
      }
}

TEST(AllReduceBucket, OnlyNarrowerTypesAreWires) {
  AllReduceBucket bucket(numbers(at::kHalf), at::kBFloat16);
  EXPECT_EQ(bucket.pack(false).scalar_type(), at::kHalf);
  AllReduceBucket narrowed(numbers(), at::kBFloat16);
  EXPECT_EQ(narrowed.pack(false).scalar_type(), at::kBFloat16);
  EXPECT_EQ(narrowed.payload_bytes(), kElements * 2);
}

TEST(AllReduceBucket, AWireRoundsToNearestBeforeAndAfterTheSum) {
  at::Tensor grads = at::tensor({1.0F + 3 * 0x1p-9F, 1.0F + 0x1p-9F, -2.0F});
  AllReduceBucket bucket(grads, at::kBFloat16);  // 8 bits of significand
  EXPECT_TRUE(carry(&bucket, false, 1, 3));
  // 1 + 2^-7 tripled and rounded; halfway goes to even; exact.
  EXPECT_TRUE(grads.equal(at::tensor({3.03125F, 3.0F, -6.0F}))) << grads;
}

TEST(AllReduceBucket, AnOverflowOfTheWireIsNotFinite) {
  for (const double value : {3.4e38, 2e38}) {  // as an addend, and as a sum of two
    at::Tensor grads = at::full({5}, value, at::kFloat);
    AllReduceBucket large(grads, at::kBFloat16);
    EXPECT_FALSE(carry(&large, false, 2, 2)) << value;
  }
  at::Tensor grads = at::full({5}, 1e30, at::kFloat);
  AllReduceBucket bfloat(grads, at::kBFloat16);
  EXPECT_TRUE(carry(&bfloat, false, 2, 2));
}

TEST(AllReduceBucket, OnlyKeptGradientsHaveToBeFinite) {
  for (const bool packed : {false, true}) {
    at::Tensor grads = numbers();
    grads[1] = kNan;
    AllReduceBucket bucket(grads, {});
    bucket.set_kept(every_third(kElements).data(), 0);
    EXPECT_TRUE(carry(&bucket, packed, 2));
    EXPECT_EQ(grads[1].item<float>(), 0);
    grads[3] = kNan;
    EXPECT_FALSE(carry(&bucket, packed, 2));
  }
}

/// Kept means have the same bits if dropped elements are not read, for few kept elements and for
/// many.
TEST(AllReduceBucket, WhatIsDroppedMayStay) {
  for (const int64_t every : {int64_t{3}, kElements}) {
    std::vector<uint8_t> bits(static_cast<size_t>(num_mask_bytes(kElements)));
    for (int64_t i = 0; i < kElements; i += every)
      bits[static_cast<size_t>(i / 8)] |= static_cast<uint8_t>(1U << (i % 8));
    at::Tensor zeroed = numbers(), left = numbers();
    left[1] = kNan;
    for (at::Tensor* grads : {&zeroed, &left}) {
      AllReduceBucket bucket(*grads, {});
      bucket.set_kept(bits.data(), 0);
      bucket.pack(true);
      EXPECT_TRUE(bucket.unpack(7, grads == &left ? Dropped::kUndefined : Dropped::kZero));
    }
    EXPECT_TRUE(left.slice(0, 0, kElements, every).equal(zeroed.slice(0, 0, kElements, every)));
    EXPECT_EQ(left[1].isnan().item<bool>(), every == kElements) << "memory without kept ones stays";
  }
}

TEST(AllReduceBucket, MasksComeAndGo) {
  at::Tensor grads = at::ones({16});
  AllReduceBucket bucket(grads, {});
  const std::vector<uint8_t> all{0xff, 0xff}, none{0, 0};
  bucket.set_kept(all.data(), 0);
  EXPECT_FALSE(bucket.can_pack());
  bucket.set_kept(none.data(), 0);
  EXPECT_TRUE(bucket.can_pack());
  EXPECT_EQ(bucket.pack(true).numel(), 0);
  EXPECT_TRUE(bucket.unpack(1, Dropped::kZero));
  EXPECT_TRUE(grads.equal(at::zeros({16})));
  bucket.keep_all();
  grads.fill_(6);
  EXPECT_TRUE(carry(&bucket, false, 2));
  EXPECT_TRUE(grads.equal(at::full({16}, 3.0F)));
}

}  // namespace all_reduce_bucket_test
}  // namespace lockstep::dist
