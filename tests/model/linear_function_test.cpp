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

/// All three ways to compute it: both of backward, and the order of the product for large weights.
TEST(LinearFunction, MayHaveNoBias) {
  for (const int64_t width : {3, 300, 1100}) {
    const at::Tensor weight = (at::rand({width, width}) - 0.5).set_requires_grad(true);
    at::Tensor(weight).mutable_grad() = at::full({width, width}, 7.0);
    const auto is_stale = std::make_shared<bool>(true);
    at::Tensor inputs = at::rand({2, width}).set_requires_grad(true);
    const at::Tensor outputs = linear(inputs, weight, {}, is_stale);
    EXPECT_TRUE(at::allclose(outputs, inputs.matmul(weight.t()), 1e-5, 1e-5)) << width;
    outputs.sum().backward();
    const at::Tensor ones = at::ones({2, width});
    EXPECT_TRUE(at::allclose(weight.grad(), ones.t().matmul(inputs), 1e-5, 1e-5)) << width;
    EXPECT_TRUE(at::allclose(inputs.grad(), ones.matmul(weight), 1e-4, 1e-4)) << width;
  }
}

}  // namespace linear_function_test
}  // namespace lockstep::model
