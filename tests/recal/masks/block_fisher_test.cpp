#include "recal/masks/block_fisher.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace lockstep::recal {
namespace block_fisher_test {

constexpr int64_t kWeights = 22, kBlock = 4;  // the last block is half padding

at::Tensor numbers(int64_t seed, at::IntArrayRef sizes) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(seed));
  return at::randn(sizes, generator);
}

/// The whole matrix by its definition: no blocks of other weights, no padding.
at::Tensor inverse_by_definition(const at::Tensor& gradients_mD, double damp) {
  const at::Tensor wide = gradients_mD.to(at::kDouble);
  const int64_t num = wide.size(1);
  const at::Tensor blocks = at::arange(num).div(kBlock, "floor");
  const at::Tensor same = blocks.unsqueeze(0).eq(blocks.unsqueeze(1));
  const at::Tensor fisher = wide.t().matmul(wide) / wide.size(0) * same;
  return at::linalg_inv(fisher + damp * at::eye(num, at::kDouble));
}

/// num_grads below, at and above the block size: gradients are stored, or sums of products.
class Fisher : public ::testing::TestWithParam<int64_t> {
 protected:
  Fisher() {
    for (int64_t i = 0; i < gradients.size(0); ++i) fisher.add(gradients[i]);
  }
  static constexpr double kDamp = 0.01;
  const at::Tensor gradients = numbers(1, {GetParam(), kWeights});
  const at::Tensor weight = numbers(2, {kWeights});
  const at::Tensor inverse = inverse_by_definition(gradients, kDamp);
  BlockFisher fisher{kWeights, {.num_grads = GetParam(), .damp = kDamp, .block_size = kBlock}};
};

void expect_near(const at::Tensor& found, const at::Tensor& wanted) {
  EXPECT_TRUE(at::allclose(found.to(at::kDouble), wanted, 1e-5, 1e-7)) << found << wanted;
}

TEST_P(Fisher, ScoresASingleWeight) {
  expect_near(fisher.scores(weight), weight.to(at::kDouble).square() / (2 * inverse.diagonal()));
}

TEST_P(Fisher, ChangesTheOthersOfItsBlock) {
  const at::Tensor pruned = at::zeros({kWeights}, at::kBool);
  for (const int64_t i : {0, 2, 9, 21}) pruned[i] = true;
  expect_near(fisher.update(weight, pruned),
              inverse.matmul(weight.to(at::kDouble) * pruned / inverse.diagonal()));
}

TEST_P(Fisher, ScoresAndPrunesGroups) {
  const at::Tensor scores = fisher.scores(weight, 2);
  const at::Tensor change = fisher.update(weight, at::arange(kWeights).div(2, "floor").eq(3), 2);
  for (int64_t first = 0; first < kWeights; first += 2) {
    const at::Tensor part = weight.narrow(0, first, 2).to(at::kDouble);
    const at::Tensor solved =
        at::linalg_solve(inverse.narrow(0, first, 2).narrow(1, first, 2), part);
    expect_near(scores.narrow(0, first, 2), part.dot(solved).div(2).expand({2}));
    if (first == 6) expect_near(change, inverse.narrow(1, first, 2).matmul(solved));
  }
  // The pruned weights become 0.
  expect_near(change.narrow(0, 6, 2), weight.narrow(0, 6, 2).to(at::kDouble));
}

INSTANTIATE_TEST_SUITE_P(NumGrads, Fisher, ::testing::Values(1, 3, 4, 9));

TEST(BlockFisher, ForgetsAnEarlierUpdate) {
  for (const int64_t num_grads : {2, 10}) {
    BlockFisher used(8, {.num_grads = num_grads, .damp = 0.1, .block_size = 4});
    used.add(at::full({8}, NAN));
    used.reset();
    BlockFisher fresh(8, {.num_grads = num_grads, .damp = 0.1, .block_size = 4});
    for (BlockFisher* one : {&used, &fresh}) one->add(numbers(3, {8}));
    EXPECT_TRUE(at::equal(used.scores(at::ones({8})), fresh.scores(at::ones({8}))));
  }
}

TEST(BlockFisher, WithoutGradientsOfAWeightItsMagnitudeDecides) {
  BlockFisher fisher(4, {.num_grads = 8, .damp = 0.5, .block_size = 2});
  fisher.add(at::tensor({1.0F, 0.0F, 0.0F, 0.0F}));
  const at::Tensor scores = fisher.scores(at::tensor({1.0F, 1.0F, -2.0F, 0.0F}));
  EXPECT_TRUE(at::allclose(scores, at::tensor({0.75F, 0.25F, 1.0F, 0.0F}))) << scores;
}

TEST(BlockFisher, GrowsTheDampingWhereRoundingLeavesNoFactor) {
  BlockFisher fisher(4, {.num_grads = 100, .damp = 1e-30, .block_size = 4});
  fisher.add(at::full({4}, 1e3));
  EXPECT_TRUE(fisher.scores(at::ones({4})).isfinite().all().item<bool>());
}

TEST(BlockFisher, MemoryIsThatOfTheSmallerForm) {
  EXPECT_EQ((FisherOptions{.num_grads = 1024, .block_size = 50}).memory_bytes(1000), 200'000);
  EXPECT_EQ((FisherOptions{.num_grads = 64, .block_size = 2000}).memory_bytes(1000), 512'000);
}

}  // namespace block_fisher_test
}  // namespace lockstep::recal
