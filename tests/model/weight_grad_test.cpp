#include "model/linear/linear_function.h"

#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::model {
namespace weight_grad_test {

using ::testing::ElementsAre;

at::Tensor numbers(at::IntArrayRef shape, double step) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return at::sin(at::arange(count, at::kFloat) * step).view(shape).clone();
}

/// 3 M elements: a small block and three of at most about 2^20, of multiples of
/// 24 rows. By LibTorch's products, and
/// by those of few samples.
class WeightGrad : public ::testing::TestWithParam<int64_t> {
 protected:
  static constexpr int64_t kNumOutputs = 2000, kNumInputs = 1500;
  const at::Tensor grads_BO = numbers({GetParam(), kNumOutputs}, 0.9);
  const at::Tensor inputs_BI = numbers({GetParam(), kNumInputs}, 0.7);
  const at::Tensor expected_OI = grads_BO.t().mm(inputs_BI);
};

TEST_P(WeightGrad, IsThereBlockByBlock) {
  for (const bool adds : {false, true}) {
    at::Tensor grad_OI = at::full_like(expected_OI, 3);
    std::vector<int64_t> told;
    std::vector<at::Tensor> seen;
    write_weight_grad(
        grads_BO, inputs_BI, adds,
        [&](int64_t num_elements) {
          told.push_back(num_elements);
          seen.push_back(grad_OI.flatten().narrow(0, 0, num_elements).clone());
        },
        grad_OI);
    EXPECT_THAT(told, ElementsAre(192 * kNumInputs, 816 * kNumInputs, 1416 * kNumInputs,
                                  2000 * kNumInputs));
    for (size_t i = 0; i < told.size(); ++i)
      EXPECT_TRUE(seen[i].equal(grad_OI.flatten().narrow(0, 0, told[i]))) << "written again, " << i;
    EXPECT_TRUE(at::allclose(grad_OI, adds ? expected_OI + 3 : expected_OI, 1e-4, 1e-4));
    at::Tensor unheard_OI = at::full_like(expected_OI, 3);
    write_weight_grad(grads_BO, inputs_BI, adds, nullptr, unheard_OI);
    EXPECT_TRUE(unheard_OI.equal(grad_OI)) << "bits depend on who listens";
  }
}

INSTANTIATE_TEST_SUITE_P(Samples, WeightGrad, ::testing::Values(1, 8, 40));

TEST(WeightGradShapes, MayBeSmallEmptyOrOfOneLongRow) {
  for (const auto& [num_outputs, num_inputs] :
       std::vector<std::pair<int64_t, int64_t>>{{5, 7}, {0, 7}, {5, 0}, {2, 1'500'000}}) {
    SCOPED_TRACE(::testing::Message() << num_outputs << "x" << num_inputs);
    const at::Tensor grads_BO = numbers({3, num_outputs}, 0.9);
    const at::Tensor inputs_BI = numbers({3, num_inputs}, 0.7);
    at::Tensor grad_OI = at::full({num_outputs, num_inputs}, 7.0);
    write_weight_grad(grads_BO, inputs_BI, /*adds=*/false, nullptr, grad_OI);
    EXPECT_TRUE(at::allclose(grad_OI, grads_BO.t().mm(inputs_BI), 1e-4, 1e-4));
  }
}

/// The product is rounded to the factors' type before it is added.
TEST(WeightGradTypes, MayBeWiderThanTheFactors) {
  const at::Tensor grads_BO = numbers({3, 5}, 0.9).to(at::kBFloat16);
  const at::Tensor inputs_BI = numbers({3, 7}, 0.7).to(at::kBFloat16);
  const at::Tensor product = grads_BO.t().mm(inputs_BI).to(at::kFloat);
  at::Tensor grad_OI = at::full({5, 7}, 0.1);
  write_weight_grad(grads_BO, inputs_BI, /*adds=*/true, nullptr, grad_OI);
  EXPECT_TRUE(grad_OI.equal(product + at::full({5, 7}, 0.1)));
  write_weight_grad(grads_BO, inputs_BI, /*adds=*/false, nullptr, grad_OI);
  EXPECT_TRUE(grad_OI.equal(product));
}

}  // namespace weight_grad_test
}  // namespace lockstep::model
