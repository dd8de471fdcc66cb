#include "train/step/buffers.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::train {
namespace layout_test {

using ::testing::ElementsAre;

Param parameter(const std::string& name, at::ScalarType dtype) {
  at::Tensor tensor = at::ones({4}, dtype);
  tensor.set_requires_grad(true);
  return {name, tensor, true, true};
}

TEST(Layout, ABufferHoldsParametersOfOneType) {
  ParamTable params = {parameter("a", at::kFloat), parameter("b", at::kDouble),
                       parameter("c", at::kFloat), parameter("d", at::kDouble)};
  const optim::BufferPlan plan = plan_layout(params, {true, true, true, true}, 1 << 20);
  EXPECT_THAT(plan, ElementsAre(ElementsAre(3, 1), ElementsAre(2, 0)));
  optim::FlatParams flat_params(params, plan, at::kCPU);
  EXPECT_EQ(flat_params.buffers()[0].grads_E.scalar_type(), at::kDouble);
  EXPECT_EQ(flat_params.buffers()[1].grads_E.scalar_type(), at::kFloat);
}

TEST(Layout, TrainableAndFrozenOnesAreApart) {
  const ParamTable params = {parameter("a", at::kFloat), parameter("b", at::kFloat),
                             parameter("c", at::kDouble)};
  EXPECT_THAT(plan_layout(params, {true, false, false}, 1 << 20),
              ElementsAre(ElementsAre(2), ElementsAre(1), ElementsAre(0)));
}

TEST(Layout, MultipliersOfTheRateAreApart) {
  ParamTable params = {parameter("a", at::kFloat), parameter("b", at::kFloat),
                       parameter("c", at::kFloat)};
  params[1].rate_multiplier = 0.5;
  const optim::BufferPlan plan = plan_layout(params, {true, true, true}, 1 << 20);
  EXPECT_THAT(plan, ElementsAre(ElementsAre(1), ElementsAre(2, 0)));
  optim::FlatParams flat_params(params, plan, at::kCPU);
  EXPECT_EQ(flat_params.buffers()[0].rate_multiplier, 0.5);
  EXPECT_EQ(flat_params.buffers()[1].rate_multiplier, 1);
}

}  // namespace layout_test
}  // namespace lockstep::train
