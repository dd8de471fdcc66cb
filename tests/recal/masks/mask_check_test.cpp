#include "recal/masks/mask_update.h"

#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace lockstep::recal {
namespace mask_check_test {

MaskKind kind(const std::string& text) { return MaskKind::parse(text).value(); }

std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    return error.what();
  }
  return "accepted";
}

TEST(MaskCheck, ShapesThatAKindCannotPrune) {
  EXPECT_EQ(refusal([] {
              check_mask_kind(kind("2:4"), "fc.weight", {10, 30});
            }),
            "[recal] fc.weight [10, 30] cannot be pruned by mask_type 2:4: its 30 inputs are not a "
            "multiple of 4; remove it from params or use mask_type unstructured or block4");
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{40, 64}, {64, 40}})
    EXPECT_THAT(refusal([&] { check_mask_kind(kind("2:4 transposable"), "fc.weight", shape); }),
                ::testing::EndsWith("cannot be pruned by mask_type 2:4 transposable: that needs "
                                    "the weight [outputs, inputs] of a linear layer, both "
                                    "multiples of 16; remove it from params or use mask_type 2:4"));
  EXPECT_NE(refusal([] {
              check_mask_kind(kind("2:4 transposable"), "conv.weight", {16, 16, 3, 3});
            }),
            "accepted");
  EXPECT_EQ(refusal([] {
              check_mask_kind(kind("2:4 transposable"), "fc.weight", {48, 16});
            }),
            "accepted");
  EXPECT_EQ(refusal([] { check_mask_kind(kind("filter"), "fc.bias", {10}); }),
            "[recal] fc.bias [10] cannot be pruned by mask_type filter: that needs a weight "
            "[outputs, inputs, ...]; remove it from params or use mask_type unstructured");
  EXPECT_EQ(refusal([] { check_mask_kind(kind("2:4"), "conv.weight", {8, 4, 3, 3}); }), "accepted");
  EXPECT_EQ(refusal([] { check_mask_kind(kind("block4"), "fc.weight", {10, 30}); }), "accepted");
  EXPECT_EQ(refusal([] { check_mask_kind(kind("unstructured"), "b", {10}); }), "accepted");
}

TEST(MaskCheck, SparsitiesThatAKindCannotReach) {
  EXPECT_EQ(refusal([] { check_mask_sparsity(kind("2:4"), 0.6); }),
            "[recal] mask_type 2:4 keeps 2 of 4 weights, so sparsity 0.6 cannot be reached; use "
            "0.5 or less, or another mask_type");
  EXPECT_EQ(refusal([] { check_mask_sparsity(kind("2:4"), 0.5); }), "accepted");
  EXPECT_EQ(refusal([] { check_mask_sparsity(kind("1:3"), 0.6666666667); }), "accepted");
  EXPECT_EQ(refusal([] { check_mask_sparsity({}, 1.5); }),
            "[recal] sparsity 1.5 is not between 0 and 1");
  EXPECT_EQ(refusal([] { check_mask_sparsity({}, std::nan("")); }),
            "[recal] sparsity nan is not between 0 and 1");
}

}  // namespace mask_check_test
}  // namespace lockstep::recal
