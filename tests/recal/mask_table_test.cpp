#include "recal/mask_table.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "base/error.h"

namespace lockstep::recal {
namespace {

using ::testing::ElementsAre;

Param param(const std::string& name, const at::Tensor& values) {
  at::Tensor leaf = values.clone();
  leaf.requires_grad_(true);
  return {name, leaf, true, true};
}

ParamTable two_params() {
  return {param("a.weight", at::tensor({1.0F, -2.0F, 3.0F, -4.0F}).reshape({2, 2})),
          param("b.weight", at::tensor({0.0F, 5.0F}).reshape({1, 2}))};
}

TEST(MaskTable, MasksAreAllKeptAtTheStart) {
  const ParamTable params = two_params();
  MaskTable masks(params, {0, 1});
  EXPECT_TRUE(masks.of(0).kept.all().item<bool>());
  masks.enforce();
  EXPECT_TRUE(at::equal(params[0].tensor, at::tensor({1.0F, -2.0F, 3.0F, -4.0F}).reshape({2, 2})));
}

TEST(MaskTable, EnforceZeroesWhatIsPrunedAndNothingElse) {
  const ParamTable params = two_params();
  MaskTable masks(params, {0});
  EXPECT_TRUE(masks.prune(0, 0.5));
  EXPECT_FALSE(masks.prune(0, 0.5));
  EXPECT_TRUE(at::equal(params[0].tensor,
                        at::tensor({1.0F, -2.0F, 3.0F, -4.0F}).reshape({2, 2})));  // not yet
  masks.enforce();
  EXPECT_TRUE(at::equal(params[0].tensor, at::tensor({0.0F, 0.0F, 3.0F, -4.0F}).reshape({2, 2})));
  EXPECT_TRUE(at::equal(params[1].tensor, at::tensor({0.0F, 5.0F}).reshape({1, 2})));
  EXPECT_EQ(masks.of(0).num_pruned, 2);
}

TEST(MaskTable, EnforceLeavesPositiveZerosOverAnyValue) {
  const ParamTable params{
      param("a", at::tensor({-1.0F, std::nanf(""), INFINITY, 9.0F}).reshape({2, 2}))};
  MaskTable masks(params, {0});
  masks.state()[0].tensor.copy_(at::tensor({0, 0, 0, 1}, at::kByte).reshape({2, 2}));
  masks.recount();
  masks.enforce();
  EXPECT_TRUE(at::equal(params[0].tensor.detach().view(at::kInt),
                        at::tensor({0.0F, 0.0F, 0.0F, 9.0F}).reshape({2, 2}).view(at::kInt)));
}

TEST(MaskTable, EnforceWorksForOtherTypesAndStrides) {
  for (const at::ScalarType dtype : {at::kDouble, at::kHalf, at::kBFloat16}) {
    const ParamTable params{
        param("a", at::tensor({1.0F, -2.0F, 3.0F, -4.0F}).reshape({2, 2}).to(dtype))};
    MaskTable masks(params, {0});
    masks.prune(0, 0.5);
    masks.enforce();
    EXPECT_TRUE(at::equal(params[0].tensor,
                          at::tensor({0.0F, 0.0F, 3.0F, -4.0F}).reshape({2, 2}).to(dtype)));
  }
  const ParamTable params{param(
      "a", at::tensor({1.0F, 3.0F, -2.0F, -4.0F}).reshape({2, 2}).t())};  // clone keeps strides
  ASSERT_FALSE(params[0].tensor.is_contiguous());
  MaskTable masks(params, {0});
  masks.prune(0, 0.5);
  masks.enforce();
  EXPECT_TRUE(at::equal(params[0].tensor, at::tensor({0.0F, 0.0F, 3.0F, -4.0F}).reshape({2, 2})));
}

TEST(MaskTable, FollowsAParameterWhoseMemoryMoves) {
  ParamTable params = two_params();
  MaskTable masks(params, {0});
  const at::Tensor flat_E = at::tensor({9.0F, 1.0F, -2.0F, 3.0F, -4.0F});
  params[0].tensor.set_data(flat_E.narrow(0, 1, 4).view({2, 2}));
  masks.prune(0, 0.25);
  masks.enforce();
  EXPECT_TRUE(at::equal(flat_E, at::tensor({9.0F, 0.0F, -2.0F, 3.0F, -4.0F})));
}

TEST(MaskTable, KeepZerosAndRelease) {
  const ParamTable params = two_params();
  MaskTable masks(params, {0, 1});
  EXPECT_TRUE(masks.keep_zeros(1));
  EXPECT_FALSE(masks.keep_zeros(0));
  EXPECT_TRUE(at::equal(masks.of(1).kept, at::tensor({0, 1}, at::kByte).reshape({1, 2})));
  EXPECT_TRUE(masks.release(1));
  EXPECT_FALSE(masks.release(1));
  EXPECT_EQ(masks.of(1).num_pruned, 0);
}

TEST(MaskTable, StateIsTheLiveMasksUnderTheirNames) {
  const ParamTable params{param("blocks.0.conv.weight", at::ones({2, 3}))};
  MaskTable masks(params, {0});
  const StateList state = masks.state();
  ASSERT_EQ(state.size(), 1U);
  EXPECT_EQ(state[0].key, "_lockstep/masks/blocks/0/conv/weight");
  EXPECT_EQ(state[0].tensor.scalar_type(), at::kByte);
  EXPECT_THAT(state[0].tensor.sizes(), ElementsAre(2, 3));
  masks.prune(0, 0.5);
  EXPECT_EQ(state[0].tensor.sum().item<int64_t>(), 3);
}

TEST(MaskTable, DigestsDependOnBitsAndShape) {
  const ParamTable params{param("a", at::ones({2, 3})), param("b", at::ones({3, 2})),
                          param("c", at::ones({2, 3}))};
  MaskTable masks(params, {0, 1, 2});
  EXPECT_EQ(masks.digest(0), masks.digest(2));
  EXPECT_NE(masks.digest(0), masks.digest(1));
  const std::string before = masks.digest(0);
  masks.state()[0].tensor[1][2] = 0;
  EXPECT_NE(masks.digest(0), before);
}

TEST(MaskTable, AParameterWithoutMaskIsABug) {
  const ParamTable params = two_params();
  MaskTable masks(params, {1});
  EXPECT_THROW(masks.of(0), Error);
}

}  // namespace
}  // namespace lockstep::recal
