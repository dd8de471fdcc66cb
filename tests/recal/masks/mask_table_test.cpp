#include "recal/masks/mask_table.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "base/error.h"
#include "base/simd/bit_mask.h"
#include "dist/communicator.h"

namespace lockstep::recal {
namespace mask_table_test {

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

/// Prunes one parameter by itself; true if its mask changed.
bool prune(MaskTable* masks, int64_t param, double sparsity) {
  dist::SelfCommunicator comm;
  return !masks->prune({param}, sparsity, {}, comm).empty();
}

at::Tensor kept(const MaskTable& masks, int64_t param) {
  return kept_flags(masks.of(param).kept_bits, masks.of(param).weight.sizes());
}

TEST(MaskTable, MasksAreAllKeptAtTheStart) {
  const ParamTable params = two_params();
  MaskTable masks(params, {0, 1});
  EXPECT_TRUE(kept(masks, 0).all().item<bool>());
  masks.enforce();
  EXPECT_TRUE(at::equal(params[0].tensor, at::tensor({1.0F, -2.0F, 3.0F, -4.0F}).reshape({2, 2})));
}

TEST(MaskTable, EnforceZeroesWhatIsPrunedAndNothingElse) {
  const ParamTable params = two_params();
  MaskTable masks(params, {0});
  EXPECT_TRUE(prune(&masks, 0, 0.5));
  EXPECT_FALSE(prune(&masks, 0, 0.5));
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
  masks.state()[0].tensor.fill_(0b1000);
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
    prune(&masks, 0, 0.5);
    masks.enforce();
    EXPECT_TRUE(at::equal(params[0].tensor,
                          at::tensor({0.0F, 0.0F, 3.0F, -4.0F}).reshape({2, 2}).to(dtype)));
  }
  const ParamTable params{param(
      "a", at::tensor({1.0F, 3.0F, -2.0F, -4.0F}).reshape({2, 2}).t())};  // clone keeps strides
  ASSERT_FALSE(params[0].tensor.is_contiguous());
  MaskTable masks(params, {0});
  prune(&masks, 0, 0.5);
  masks.enforce();
  EXPECT_TRUE(at::equal(params[0].tensor, at::tensor({0.0F, 0.0F, 3.0F, -4.0F}).reshape({2, 2})));
}

TEST(MaskTable, FollowsAParameterWhoseMemoryMoves) {
  ParamTable params = two_params();
  MaskTable masks(params, {0});
  const at::Tensor flat_E = at::tensor({9.0F, 1.0F, -2.0F, 3.0F, -4.0F});
  params[0].tensor.set_data(flat_E.narrow(0, 1, 4).view({2, 2}));
  prune(&masks, 0, 0.25);
  masks.enforce();
  EXPECT_TRUE(at::equal(flat_E, at::tensor({9.0F, 0.0F, -2.0F, 3.0F, -4.0F})));
}

TEST(MaskTable, KeepZerosAndRelease) {
  const ParamTable params = two_params();
  MaskTable masks(params, {0, 1});
  EXPECT_TRUE(masks.keep_zeros(1));
  EXPECT_FALSE(masks.keep_zeros(0));
  EXPECT_TRUE(at::equal(kept(masks, 1), at::tensor({0, 1}, at::kByte).reshape({1, 2})));
  EXPECT_TRUE(masks.release(1));
  EXPECT_FALSE(masks.release(1));
  EXPECT_EQ(masks.of(1).num_pruned, 0);
}

TEST(MaskTable, StateIsTheLiveMasksUnderTheirNames) {
  const ParamTable params{param("blocks.0.conv.weight", at::ones({2, 5}))};
  MaskTable masks(params, {0});
  const StateList state = masks.state();
  ASSERT_EQ(state.size(), 1U);
  EXPECT_EQ(state[0].key, "_lockstep/masks/blocks/0/conv/weight");
  EXPECT_EQ(state[0].tensor.scalar_type(), at::kByte);
  EXPECT_THAT(state[0].tensor.sizes(), ElementsAre(2));
  prune(&masks, 0, 0.5);
  EXPECT_EQ(state[0].tensor[0].item<int64_t>(), 0b11100000);
  EXPECT_EQ(state[0].tensor[1].item<int64_t>(), 0b11);
}

TEST(MaskTable, WhatASaveLacksIsAllKeptOnceCounted) {
  const ParamTable params{param("a", at::ones({2, 5}))};
  MaskTable masks(params, {0});
  prune(&masks, 0, 0.5);
  const StateEntry entry = masks.state()[0];
  entry.tensor.fill_(*entry.value_if_missing);  // as a restore does, bits behind the end too
  masks.recount();
  EXPECT_EQ(masks.num_pruned(), 0);
  EXPECT_TRUE(masks.of(0).kept_bits.equal(MaskTable(params, {0}).of(0).kept_bits));
}

TEST(MaskTable, GradientsOfPrunedWeightsBecomeZero) {
  ParamTable params = two_params();
  MaskTable masks(params, {0, 1});
  prune(&masks, 0, 0.5);
  masks.keep_zeros(1);
  params[0].tensor.mutable_grad() = at::full({2, 2}, -7.0F);
  masks.enforce_gradients();  // parameter 1 has none
  EXPECT_TRUE(
      at::equal(params[0].tensor.grad(), at::tensor({0.0F, 0.0F, -7.0F, -7.0F}).reshape({2, 2})));
  params[0].tensor.mutable_grad() = at::full({2, 2}, -7.0F).t();
  masks.enforce_gradients();
  EXPECT_TRUE(
      at::equal(params[0].tensor.grad(), at::tensor({0.0F, 0.0F, -7.0F, -7.0F}).reshape({2, 2})));
}

TEST(MaskTable, CountsWhatGrewBack) {
  const ParamTable params = two_params();
  MaskTable masks(params, {0, 1});
  prune(&masks, 0, 0.5);
  EXPECT_EQ(masks.count_revived(), 2);  // not yet enforced
  masks.enforce();
  EXPECT_EQ(masks.count_revived(), 0);
  params[0].tensor.detach()[0][1] = -0.0F;
  EXPECT_EQ(masks.count_revived(), 0);
  params[0].tensor.detach()[0][0] = std::nanf("");
  EXPECT_EQ(masks.count_revived(), 1);
}

TEST(MaskTable, PruneTellsWhichMasksChanged) {
  dist::SelfCommunicator comm;
  const ParamTable params = two_params();
  MaskTable masks(params, {0, 1});
  EXPECT_THAT(masks.prune({0, 1}, 0.25, {}, comm), ElementsAre(0, 1));  // 1 of 4, 0.5 -> 1 of 2
  EXPECT_THAT(masks.prune({0, 1}, 0.5, {}, comm), ElementsAre(0));
  EXPECT_THAT(masks.prune({0, 1}, 0.5, {}, comm), ElementsAre());
  EXPECT_EQ(masks.num_pruned(), 3);
}

TEST(MaskTable, ARuleThatDoesNotFitIsRefused) {
  dist::SelfCommunicator comm;
  const ParamTable params = two_params();
  MaskTable masks(params, {0, 1});
  const MaskRule rule{*MaskKind::parse("2:4"), false};
  EXPECT_THROW(masks.prune({0, 1}, 0.5, rule, comm), Error);
  EXPECT_THROW(masks.prune({0, 1}, 1.5, {}, comm), Error);
}

TEST(MaskTable, AParameterWithoutMaskIsABug) {
  const ParamTable params = two_params();
  MaskTable masks(params, {1});
  EXPECT_THROW(masks.of(0), Error);
}

}  // namespace mask_table_test
}  // namespace lockstep::recal
