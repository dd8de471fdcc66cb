#include "model/linear_function.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <torch/csrc/autograd/custom_function.h>

namespace lockstep::model {
namespace linear_function_test {

/// A layer behind which somebody's own function knows no gradient.
struct GivesNoGradient : torch::autograd::Function<GivesNoGradient> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->set_materialize_grads(false);
    return x.view_as(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    return {at::Tensor()};
  }
};

at::Tensor parameter(at::IntArrayRef shape) {
  at::Tensor tensor = at::ones(shape);
  tensor.set_requires_grad(true);
  return tensor;
}

/// Both ways of backward: a weight's gradient in a node of its own, and in one with the product.
TEST(LinearFunction, WithoutAnOutputGradientTheLastStepsGradientIsNotTakenForThisOnes) {
  for (const int64_t width : {3, 300}) {
    const at::Tensor weight = parameter({width, width}), bias = parameter({width});
    at::Tensor(weight).mutable_grad() = at::full({width, width}, 7.0);  // of the step before
    at::Tensor(bias).mutable_grad() = at::zeros({width});
    const auto is_stale = std::make_shared<bool>(true);
    GivesNoGradient::apply(linear(at::ones({2, width}), weight, bias, is_stale)).sum().backward();
    EXPECT_TRUE(weight.grad().equal(at::zeros({width, width}))) << width;
    EXPECT_TRUE(bias.grad().equal(at::zeros({width}))) << width;
    EXPECT_FALSE(*is_stale) << width;
  }
}

}  // namespace linear_function_test
}  // namespace lockstep::model
