#include "model/linear/kept_weight.h"

#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <torch/csrc/autograd/autograd.h>

#include "base/random.h"
#include "base/simd/bit_mask.h"
#include "model/linear/linear_function.h"

namespace lockstep::model {
namespace kept_weight_test {

std::vector<uint8_t> random_bits(int64_t num, double kept) {
  const CounterRandom random{7};
  std::vector<uint8_t> bits(static_cast<size_t>(num_mask_bytes(num)));
  for (int64_t i = 0; i < num; ++i)
    if (random.uniform(static_cast<uint64_t>(i)) < kept)
      bits[static_cast<size_t>(i / 8)] |= static_cast<uint8_t>(1U << (i % 8));
  return bits;
}

at::Tensor numbers(at::IntArrayRef shape, double step) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return at::sin(at::arange(count, at::kFloat) * step).view(shape).clone();
}

/// A weight, what a mask leaves of it, and all that goes through it.
struct Case {
  Case(int64_t num_samples, int64_t num_inputs, int64_t num_outputs, double share)
      : bits(random_bits(num_outputs * num_inputs, share)),
        weight(numbers({num_outputs, num_inputs}, 1.3)),
        bias(numbers({num_outputs}, 0.4)),
        inputs(numbers({num_samples, num_inputs}, 0.7)),
        grads(numbers({num_samples, num_outputs}, 0.9)),
        kept(bits.data(), num_outputs, num_inputs) {
    zero_pruned(weight.mutable_data_ptr(), bits.data(), weight.numel(), sizeof(float));
  }
  at::Tensor masked(at::Tensor values) const {
    zero_pruned(values.mutable_data_ptr(), bits.data(), values.numel(), sizeof(float));
    return values;
  }

  std::vector<uint8_t> bits;
  at::Tensor weight, bias, inputs, grads;
  KeptWeight kept;
};

void expect_dense_products(const Case& one) {
  const auto close = [](const at::Tensor& a, const at::Tensor& b) {
    return a.sizes() == b.sizes() && at::allclose(a, b, 1e-4, 1e-4);
  };
  const at::Tensor values_K = one.kept.values_of(one.weight);
  EXPECT_EQ(values_K.numel(), count_kept(one.bits.data(), one.weight.numel()));
  EXPECT_TRUE(close(one.kept.outputs(values_K, one.inputs, one.bias),
                    at::linear(one.inputs, one.weight, one.bias)));
  EXPECT_TRUE(close(one.kept.outputs(values_K, one.inputs, {}), one.inputs.mm(one.weight.t())));
  EXPECT_TRUE(close(one.kept.input_grads(values_K, one.grads), one.grads.mm(one.weight)));
  const at::Tensor grad = one.masked(one.grads.t().mm(one.inputs));
  at::Tensor written = at::full_like(grad, 3);
  one.kept.write_grads(one.grads, one.inputs, /*adds=*/false, written);
  EXPECT_TRUE(close(written, grad)) << "the others become 0";
  one.kept.write_grads(one.grads, one.inputs, /*adds=*/true, written);
  EXPECT_TRUE(close(written, 2 * grad));
}

/// Samples around the widths of tiles, rows that do not end with a byte, rows without an element.
TEST(KeptWeight, ProductsAreThoseOfTheDenseWeight) {
  for (const int64_t num_samples : {1, 2, 7, 8, 9, 16, 17, 32, 33, 70})
    for (const double share : {0.0, 0.02, 0.3, 1.0}) {
      SCOPED_TRACE(::testing::Message() << num_samples << " samples, " << share << " kept");
      expect_dense_products({num_samples, 13, 29, share});
      expect_dense_products({num_samples, 300, 11, share});
    }
  expect_dense_products({5, 517, 301, 0.1});  // more than one block of a mask's bits
}

TEST(KeptWeight, NoSamplesGiveNothing) {
  const Case one(3, 13, 29, 0.3);
  const at::Tensor no_inputs = one.inputs.narrow(0, 0, 0), no_grads = one.grads.narrow(0, 0, 0);
  const at::Tensor values_K = one.kept.values_of(one.weight);
  EXPECT_EQ(one.kept.outputs(values_K, no_inputs, one.bias).sizes(), at::IntArrayRef({0, 29}));
  EXPECT_EQ(one.kept.input_grads(values_K, no_grads).sizes(), at::IntArrayRef({0, 13}));
  at::Tensor grad = at::full({29, 13}, 3.0F);
  one.kept.write_grads(no_grads, no_inputs, /*adds=*/false, grad);
  EXPECT_TRUE(one.masked(grad).equal(at::zeros({29, 13})));
}

TEST(KeptWeight, PathsAndThreadsAgreeInEveryBit) {
  const int num_threads = at::get_num_threads();
  for (const int64_t num_samples : {4, 20, 64}) {
    const Case one(num_samples, 700, 900, 0.2);
    std::vector<std::vector<at::Tensor>> found;
    for (const SimdPath path : simd_paths())
      for (const int threads : {1, 2, 5}) {
        at::set_num_threads(threads);
        const at::Tensor values_K = one.kept.values_of(one.weight);
        at::Tensor grad = at::zeros_like(one.weight);
        one.kept.write_grads(one.grads, one.inputs, /*adds=*/false, grad, path);
        found.push_back({one.kept.outputs(values_K, one.inputs, one.bias, path),
                         one.kept.input_grads(values_K, one.grads, path), grad});
      }
    at::set_num_threads(num_threads);
    for (const std::vector<at::Tensor>& each : found)
      for (size_t i = 0; i < each.size(); ++i) EXPECT_TRUE(each[i].equal(found.front()[i])) << i;
  }
}

TEST(KeptWeight, IsMadeWhereItPays) {
  constexpr int64_t kRows = 600, kColumns = 500;
  const auto made = [](double share) {
    return KeptWeight::make(random_bits(kRows * kColumns, share).data(), kRows, kColumns);
  };
  EXPECT_EQ(made(0.4), nullptr);
  EXPECT_EQ(KeptWeight::make(random_bits(100 * 100, 0.1).data(), 100, 100), nullptr) << "small";
  const auto third = made(0.3), fifth = made(0.15), few = made(0.05);
  EXPECT_TRUE(third->pays(8));
  EXPECT_FALSE(third->pays(1) || third->pays(33) || fifth->pays(1));
  EXPECT_TRUE(fifth->pays(33) && few->pays(1) && few->pays(33));
}

/// The layer's function.
class LinearOfKept : public ::testing::Test {
 protected:
  LinearOfKept() {
    one.weight.set_requires_grad(true);
    one.bias.set_requires_grad(true);
    one.inputs.set_requires_grad(true);
    one.weight.mutable_grad() = at::zeros({29, 13});
    one.bias.mutable_grad() = at::zeros({29});
  }
  at::Tensor product() {
    const MaskedProducts masked = masked_of(one);
    return linear(one.inputs, one.weight, one.bias, in_place, &masked);
  }
  static MaskedProducts masked_of(const Case& of) {
    return {.kept = {std::shared_ptr<void>(), &of.kept}};  // does not own it
  }

  Case one{6, 13, 29, 0.05};
  std::shared_ptr<GradInPlace> in_place =
      std::make_shared<GradInPlace>(GradInPlace{.is_stale = true});
};

TEST_F(LinearOfKept, GivesGradientsToKeptElementsAlone) {
  for (const int64_t times : {1, 2}) {  // the second is added
    const at::Tensor outputs = product();
    EXPECT_TRUE(at::allclose(outputs, at::linear(one.inputs, one.weight, one.bias), 1e-4, 1e-4));
    outputs.backward(one.grads);
    const at::Tensor expected = one.masked(one.grads.t().mm(one.inputs.detach())) * times;
    EXPECT_TRUE(at::allclose(one.weight.grad(), expected, 1e-4, 1e-4));
    EXPECT_TRUE(at::allclose(one.bias.grad(), one.grads.sum(0) * times, 1e-4, 1e-4));
    EXPECT_TRUE(
        at::allclose(one.inputs.grad(), one.grads.mm(one.weight.detach()) * times, 1e-4, 1e-4));
    EXPECT_FALSE(in_place->is_stale);
  }
}

TEST_F(LinearOfKept, AFrozenWeightPassesGradientsOn) {
  one.weight.set_requires_grad(false);
  one.bias.set_requires_grad(false);
  product().backward(one.grads);
  EXPECT_TRUE(at::allclose(one.inputs.grad(), one.grads.mm(one.weight), 1e-4, 1e-4));
  EXPECT_TRUE(in_place->is_stale);
}

TEST_F(LinearOfKept, EvaluationsHaveLibTorchsBits) {
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(product().equal(at::linear(one.inputs, one.weight, one.bias)));
}

/// More kept than pays for one sample: the gradient is dense, and in the next pass, of more, that
/// of the others is 0.
TEST_F(LinearOfKept, WhatDenseProductsLeaveIsZeroedOnce) {
  Case dense(1, 13, 29, 0.3);
  ASSERT_FALSE(dense.kept.pays(1));
  dense.weight.set_requires_grad(true);
  dense.weight.mutable_grad() = at::full({29, 13}, 5.0F);
  const MaskedProducts masked = masked_of(dense);
  linear(dense.inputs, dense.weight, {}, in_place, &masked).backward(dense.grads);
  EXPECT_TRUE(at::allclose(dense.weight.grad(), dense.grads.t().mm(dense.inputs)));
  const Case more(4, 13, 29, 0.3);  // the same mask
  in_place->is_stale = true;
  linear(more.inputs, dense.weight, {}, in_place, &masked).backward(more.grads);
  EXPECT_TRUE(
      at::allclose(dense.weight.grad(), more.masked(more.grads.t().mm(more.inputs)), 1e-4, 1e-4));
}

/// A derivative of a derivative goes through the inputs' gradient.
TEST_F(LinearOfKept, CanBeDifferentiatedTwice) {
  const at::Tensor outputs = product();
  const at::Tensor first =
      torch::autograd::grad({outputs.square().sum()}, {one.inputs}, {}, true, true)[0];
  const at::Tensor second = torch::autograd::grad({first.sum()}, {one.inputs})[0];
  const at::Tensor weight = one.weight.detach();
  const at::Tensor expected = 2 * weight.t().mm(weight).sum(0).expand({6, 13});
  EXPECT_TRUE(at::allclose(second, expected, 1e-3, 1e-3));
}

/// Other types, and a weight whose gradient has no memory: dense products.
TEST_F(LinearOfKept, ElsewhereAllElementsCount) {
  const at::Tensor doubles = one.inputs.detach().to(at::kDouble);
  const at::Tensor weight = one.weight.detach().to(at::kDouble);
  const MaskedProducts masked = masked_of(one);
  EXPECT_TRUE(linear(doubles, weight, {}, in_place, &masked).equal(at::linear(doubles, weight)));
  one.weight.mutable_grad() = at::Tensor();
  in_place->is_stale = false;
  product().backward(one.grads);
  EXPECT_TRUE(at::allclose(one.weight.grad(), one.grads.t().mm(one.inputs.detach()), 1e-4, 1e-4));
}

}  // namespace kept_weight_test
}  // namespace lockstep::model
