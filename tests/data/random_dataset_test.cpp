#include "data/dataset_table.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

namespace lockstep::data {
namespace random_dataset_test {

TEST(RandomDataset, OfTokensHasTheNextTokenAsTarget) {
  const RandomDataset dataset({.shape = {5}, .samples = 40, .seed = 3, .tokens = 7});
  EXPECT_EQ(dataset.spec(), (SampleSpec{.input_shape = {5},
                                        .input_dtype = at::kLong,
                                        .target_kind = TargetKind::kTokens,
                                        .num_classes = 7}));
  std::vector<int64_t> all(40);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  const Samples samples = dataset.get(all, 0);
  EXPECT_EQ(samples.targets_BY.sizes(), (at::IntArrayRef{40, 5}));
  EXPECT_TRUE(at::equal(samples.inputs_BX.narrow(1, 1, 4), samples.targets_BY.narrow(1, 0, 4)));
  EXPECT_EQ(samples.inputs_BX.min().item<int64_t>(), 0);
  EXPECT_EQ(samples.inputs_BX.max().item<int64_t>(), 6);
  EXPECT_NE(dataset.digest(),
            RandomDataset({.shape = {5}, .samples = 40, .seed = 4, .tokens = 7}).digest());
}

TEST(RandomDataset, OfNumbersIsAsItWas) {
  const RandomDataset dataset({.shape = {2, 3}, .classes = 4, .samples = 9, .seed = 1});
  EXPECT_EQ(dataset.spec(), (SampleSpec{.input_shape = {2, 3}, .num_classes = 4}));
  EXPECT_EQ(dataset.digest(), RandomDataset({2, 3}, 4, 9, 1).digest());
}

}  // namespace random_dataset_test
}  // namespace lockstep::data
