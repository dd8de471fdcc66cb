#include "model/linear/linear_function.h"

#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <torch/csrc/autograd/custom_function.h>

#include "tests/model/counted_calls.h"

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

/// Tells whether `product` is a_MK * b_KN but for rounding. A float sum of K products is off by at
/// most K units of rounding of the sum of their magnitudes, in whichever order it was added.
bool is_product(const at::Tensor& product, const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor wide_a = a.to(at::kDouble), wide_b = b.to(at::kDouble);
  const double rounding = static_cast<double>(a.size(1)) * 0x1p-24;
  const at::Tensor most = wide_a.abs().matmul(wide_b.abs()).mul(rounding);
  return wide_a.matmul(wide_b).sub(product).abs().le(most).all().item<bool>();
}

/// Both ways of backward: a weight's gradient in a node of its own, and in one with the product.
TEST(LinearFunction, WithoutAnOutputGradientTheLastStepsGradientIsNotTakenForThisOnes) {
  for (const int64_t width : {3, 300}) {
    const at::Tensor weight = parameter({width, width}), bias = parameter({width});
    at::Tensor(weight).mutable_grad() = at::full({width, width}, 7.0);  // of the step before
    at::Tensor(bias).mutable_grad() = at::zeros({width});
    const auto in_place = std::make_shared<GradInPlace>(GradInPlace{.is_stale = true});
    GivesNoGradient::apply(linear(at::ones({2, width}), weight, bias, in_place)).sum().backward();
    EXPECT_TRUE(weight.grad().equal(at::zeros({width, width}))) << width;
    EXPECT_TRUE(bias.grad().equal(at::zeros({width}))) << width;
    EXPECT_FALSE(in_place->is_stale) << width;
  }
}

/// All three ways to compute it: both of backward, and the order of the product for large weights.
TEST(LinearFunction, MayHaveNoBias) {
  for (const int64_t width : {3, 300, 1100}) {
    const at::Tensor weight = (at::rand({width, width}) - 0.5).set_requires_grad(true);
    at::Tensor(weight).mutable_grad() = at::full({width, width}, 7.0);
    const auto in_place = std::make_shared<GradInPlace>(GradInPlace{.is_stale = true});
    at::Tensor inputs = at::rand({2, width}).set_requires_grad(true);
    const at::Tensor outputs = linear(inputs, weight, {}, in_place);
    EXPECT_TRUE(is_product(outputs, inputs, weight.t())) << width;
    outputs.sum().backward();
    const at::Tensor ones = at::ones({2, width});
    EXPECT_TRUE(is_product(weight.grad(), ones.t(), inputs)) << width;
    EXPECT_TRUE(is_product(inputs.grad(), ones, weight)) << width;
  }
}

TEST(LinearFunction, TellsHowMuchOfALargeGradientIsWritten) {
  constexpr int64_t kWidth = 1100;
  const at::Tensor weight = (at::rand({kWidth, kWidth}) - 0.5).set_requires_grad(true);
  at::Tensor(weight).mutable_grad() = at::zeros({kWidth, kWidth});
  std::vector<int64_t> told;
  const auto in_place = std::make_shared<GradInPlace>();
  in_place->on_written = [&](int64_t num_elements) { told.push_back(num_elements); };
  linear(at::rand({20, kWidth}), weight, {}, in_place).sum().backward();
  EXPECT_GT(told.size(), 1U);
  ASSERT_FALSE(told.empty());
  EXPECT_EQ(told.back(), kWidth * kWidth);
}

/// A forward pass in a narrower type.
class InAutocast {
 public:
  explicit InAutocast(at::ScalarType dtype) {
    at::autocast::set_autocast_dtype(at::kCPU, dtype);
    at::autocast::set_autocast_enabled(at::kCPU, true);
  }
  ~InAutocast() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
  InAutocast(const InAutocast&) = delete;
  InAutocast& operator=(const InAutocast&) = delete;
};

struct AutocastCase {
  at::ScalarType dtype = at::kBFloat16;
  int64_t width = 3;
  bool has_bias = true, is_stale = true, has_narrow_inputs = false;

  std::string name() const {
    return fmt::format("{}{}{}{}{}", at::toString(dtype), width, has_bias ? "Bias" : "",
                       is_stale ? "Overwrites" : "Adds", has_narrow_inputs ? "NarrowInputs" : "");
  }
};

/// A layer and what a pass through it gives. Its gradients hold the numbers of a pass before.
struct Layer {
  at::Tensor inputs, weight, bias, outputs;
  std::shared_ptr<GradInPlace> in_place = std::make_shared<GradInPlace>();

  explicit Layer(const AutocastCase& each) {
    in_place->is_stale = each.is_stale;
    inputs = numbers({5, each.width}, 0.7);
    if (each.has_narrow_inputs) inputs = inputs.to(each.dtype);
    inputs.set_requires_grad(true);
    weight = numbers({each.width, each.width}, 1.3).set_requires_grad(true);
    weight.mutable_grad() = numbers({each.width, each.width}, 0.3);
    if (!each.has_bias) return;
    bias = numbers({each.width}, 1.1).set_requires_grad(true);
    bias.mutable_grad() = numbers({each.width}, 0.2);
  }

  static at::Tensor numbers(at::IntArrayRef shape, double step) {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    return at::sin(at::arange(count, at::kFloat) * step).view(shape).clone();  // a leaf, no view
  }
  void backward() const {
    (outputs.to(at::kFloat) * numbers(outputs.sizes(), 0.9)).sum().backward();
  }
};

void expect_same_bits(const Layer& ours, const Layer& atens) {
  EXPECT_TRUE(ours.outputs.equal(atens.outputs));
  EXPECT_TRUE(ours.weight.grad().equal(atens.weight.grad()));
  EXPECT_TRUE(!ours.bias.defined() || ours.bias.grad().equal(atens.bias.grad()));
  EXPECT_TRUE(ours.inputs.grad().equal(atens.inputs.grad()));
}

class LinearUnderAutocast : public ::testing::TestWithParam<AutocastCase> {};

TEST_P(LinearUnderAutocast, HasTheBitsOfATenAndWritesTheGradientInBackward) {
  Layer ours(GetParam()), atens(GetParam());
  {
    const InAutocast autocast(GetParam().dtype);
    ours.outputs = linear(ours.inputs, ours.weight, ours.bias, ours.in_place);
    atens.outputs = at::linear(atens.inputs, atens.weight, atens.bias);
  }
  EXPECT_EQ(ours.outputs.scalar_type(), GetParam().dtype);
  EXPECT_EQ(ours.in_place->is_stale, GetParam().is_stale);  // nothing is zeroed before
  const void* memory = ours.weight.grad().const_data_ptr();
  ours.backward();
  if (GetParam().is_stale) atens.weight.mutable_grad().zero_();
  atens.backward();
  expect_same_bits(ours, atens);
  EXPECT_EQ(ours.inputs.grad().scalar_type(), ours.inputs.scalar_type());
  EXPECT_FALSE(ours.in_place->is_stale);
  EXPECT_EQ(ours.weight.grad().const_data_ptr(), memory);
}

/// All ways through linear(), of both types.
std::vector<AutocastCase> autocast_cases() {
  std::vector<AutocastCase> cases;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const int64_t width : {1, 3, 300})
      for (const bool has_bias : {true, false})
        for (const bool is_stale : {true, false})
          for (const bool has_narrow_inputs : {false, true})
            cases.push_back({dtype, width, has_bias, is_stale, has_narrow_inputs});
    cases.push_back({.dtype = dtype, .width = 1100});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Cases, LinearUnderAutocast, ::testing::ValuesIn(autocast_cases()),
                         [](const auto& each) { return each.param.name(); });

/// The gradients of both uses count, also of the one that finds the other's cast in the cache.
TEST(LinearFunction, UnderAutocastAWeightIsCastOnceAForwardPassWhoeverUsesIt) {
  for (const int64_t width : {3, 300})
    for (const bool is_first : {true, false}) {
      Layer layer({.width = width, .has_bias = false});
      const auto ours = [&] { return linear(layer.inputs, layer.weight, {}, layer.in_place); };
      const auto atens = [&] { return at::linear(layer.inputs, layer.weight); };
      {
        const InAutocast autocast(at::kBFloat16);
        const tests::CountedCalls calls;
        const at::Tensor first = is_first ? ours() : atens();
        layer.outputs = first + (is_first ? atens() : ours());
        EXPECT_EQ(calls.of("aten::_to_copy"), 2);  // the weight, and the inputs: a leaf too
      }
      layer.weight.mutable_grad().zero_();
      layer.in_place->is_stale = false;
      layer.backward();

      Layer once({.width = width, .has_bias = false});
      once.weight.mutable_grad().zero_();
      once.outputs = at::linear(once.inputs, once.weight) * 2;
      once.backward();
      EXPECT_TRUE(at::allclose(layer.weight.grad(), once.weight.grad(), 2e-2, 5e-2)) << width;
    }
}

/// The products and one pass over the flat gradient: no zeros, no casts.
TEST(LinearFunction, UnderAutocastBackwardWritesTheGradientInOnePass) {
  for (const int64_t width : {3, 300}) {
    Layer layer({.width = width, .has_bias = false, .has_narrow_inputs = true});
    {
      const InAutocast autocast(at::kBFloat16);
      layer.outputs = linear(layer.inputs, layer.weight, layer.bias, layer.in_place);
    }
    const at::Tensor grads = at::ones_like(layer.outputs);
    const tests::CountedCalls calls;
    layer.outputs.backward(grads);
    EXPECT_EQ(calls.of("aten::mm"), 2) << width;
    EXPECT_EQ(calls.of("aten::copy_"), 1) << width;
    for (const char* name : {"aten::_to_copy", "aten::zero_", "aten::add_"})
      EXPECT_EQ(calls.of(name), 0) << name << width;
  }
}

}  // namespace linear_function_test
}  // namespace lockstep::model
