#include "optim/outer_nesterov.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "optim/flat_training.h"

namespace lockstep::optim {
namespace outer_nesterov_test {

constexpr OuterOptions kOptions{.learning_rate = 0.7, .momentum = 0.9};

ParamTable table(const at::Tensor& values) { return {{"layer.weight", values}}; }

/// What a round of local steps does to the weights.
void learn(ParamTable& params, int64_t round) {
  const at::Tensor weight = params[0].tensor;
  weight.add_(numbers(weight.numel(), 100 + round).to(weight.scalar_type()), 0.1);
}

TEST(OuterNesterov, TwoRoundsByHand) {
  ParamTable params = table(at::full({1}, 2.0F));
  OuterNesterov outer({{.learning_rate = 0.5, .momentum = 0.75}}, params);
  params[0].tensor.fill_(1.0F);  // g = 1, m = 1: 2 - 0.5 (1 + 0.75)
  outer.step({0});
  EXPECT_EQ(params[0].tensor.item<float>(), 1.125F);
  outer.begin_round();
  params[0].tensor.fill_(1.625F);  // g = -0.5, m = 0.25: 1.125 - 0.5 (-0.5 + 0.1875)
  outer.step({0});
  EXPECT_EQ(params[0].tensor.item<float>(), 1.28125F);
  EXPECT_EQ(outer.momentum_of(0).item<float>(), 0.25F);
}

TEST(OuterNesterov, MovesOnlyWhatItIsGiven) {
  ParamTable params{{"a", at::zeros({3})}, {"b", at::zeros({3})}};
  OuterNesterov outer(kOptions, params);
  for (const Param& param : params) param.tensor.fill_(1.0F);
  outer.step({1});
  expect_same(params[0].tensor, at::ones({3}));
  EXPECT_TRUE(at::allclose(params[1].tensor, at::full({3}, 0.7 * 1.9)));
  expect_same(outer.momentum_of(0), at::zeros({3}));
}

TEST(OuterNesterov, NoBitDependsOnThreads) {
  const int num_threads = at::get_num_threads();
  std::vector<at::Tensor> found;
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    ParamTable params = table(numbers(300007, 1));
    OuterNesterov outer(kOptions, params);
    for (int64_t round = 0; round < 3; ++round) {
      outer.begin_round();
      learn(params, round);
      outer.step({0});
    }
    found.push_back(params[0].tensor);
  }
  at::set_num_threads(num_threads);
  for (const at::Tensor& values : found) expect_same(values, found[0]);
}

TEST(OuterNesterov, OtherTypesFollowTheSameRule) {
  ParamTable narrow = table(numbers(9, 1)), wide = table(numbers(9, 1).to(at::kDouble));
  OuterNesterov ours(kOptions, narrow), reference(kOptions, wide);
  for (int64_t round = 0; round < 5; ++round)
    for (auto [params, outer] : {std::pair(&narrow, &ours), {&wide, &reference}}) {
      outer->begin_round();
      learn(*params, round);
      outer->step({0});
    }
  EXPECT_TRUE(at::allclose(narrow[0].tensor.to(at::kDouble), wide[0].tensor, 1e-5, 1e-6));
}

/// A save is made between rounds, and holds the momentum alone.
TEST(OuterNesterov, GoesOnFromASave) {
  ParamTable params = table(numbers(33, 1)), other = table(numbers(33, 2));
  OuterNesterov unbroken(kOptions, params), resumed(kOptions, other);
  const auto round = [](ParamTable& weights, OuterNesterov& outer, int64_t number) {
    outer.begin_round();
    learn(weights, number);
    outer.step({0});
  };
  for (int64_t number = 0; number < 3; ++number) round(params, unbroken, number);
  ASSERT_EQ(unbroken.state().size(), 1);
  EXPECT_EQ(unbroken.state()[0].key, "optimizer/layer/weight/outer_momentum");
  EXPECT_EQ(unbroken.state()[0].value_if_missing, 0.0);
  copy_state(unbroken.state(), resumed.state());
  other[0].tensor.copy_(params[0].tensor);
  for (int64_t number = 3; number < 6; ++number) {
    round(params, unbroken, number);
    round(other, resumed, number);
  }
  expect_same(other[0].tensor, params[0].tensor);
}

TEST(OuterNesterov, OffItIsNothing) {
  ParamTable params = table(numbers(7, 1));
  OuterNesterov outer(std::nullopt, params);
  outer.begin_round();
  outer.step({0});
  EXPECT_FALSE(outer.momentum_of(0).defined());
  EXPECT_TRUE(outer.state().empty());
  expect_same(params[0].tensor, numbers(7, 1));
}

}  // namespace outer_nesterov_test
}  // namespace lockstep::optim
