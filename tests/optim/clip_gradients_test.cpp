#include "optim/optimizer.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "optim/flat_params.h"

namespace lockstep::optim {
namespace clip_gradients_test {

struct Gradients {
  explicit Gradients(const BufferPlan& plan)
      : params{{"a.weight", at::zeros({7, 9}).set_requires_grad(true), true, true},
               {"a.bias", at::zeros({5}).set_requires_grad(true), false, false},
               {"b.weight", at::zeros({100}).set_requires_grad(true), true, true}},
        flat_params(params, plan, at::kCPU) {
    for (size_t p = 0; p < params.size(); ++p)
      params[p].tensor.mutable_grad().copy_(
          at::sin(at::arange(params[p].tensor.numel()).mul(1.3 + static_cast<double>(p)))
              .view(params[p].tensor.sizes()));
  }
  std::optional<double> clip(const ClipOptions& options) {
    double squared_grad_norm = 0;
    for (const FlatBuffer& buffer : flat_params.buffers())
      if (!buffer.frozen)
        squared_grad_norm += buffer.grads_E.to(at::kDouble).square().sum().item<double>();
    return clip_gradients(options, flat_params.buffers(), regions(), squared_grad_norm);
  }
  std::vector<ParamShard> regions() {
    std::vector<ParamShard> all;
    for (size_t b = 0; b < flat_params.num_buffers(); ++b)
      if (!flat_params.buffers()[b].frozen)
        all.push_back({b, 0, flat_params.buffers()[b].values_E.numel()});
    return all;
  }
  at::Tensor all() const {
    std::vector<at::Tensor> parts;
    for (const Param& param : params) parts.push_back(param.tensor.grad().flatten());
    return at::cat(parts);
  }

  ParamTable params;
  FlatParams flat_params;
};

const BufferPlan kPlan{{2, 0}, {1}};

/// torch.nn.utils.clip_grad_norm_ in a few lines.
at::Tensor clipped_by_torchs_formula(const at::Tensor& all, double max_norm) {
  const double norm = all.to(at::kDouble).norm().item<double>();
  return all * std::min(1.0, max_norm / (norm + 1e-6));
}

TEST(ClipGradients, ByNormIsTorchsFormula) {
  for (const double limit : {0.1, 3.0, 100.0}) {
    Gradients gradients(kPlan);
    const at::Tensor before = gradients.all().clone();
    const std::optional<double> norm = gradients.clip({.value = {}, .norm = limit});
    ASSERT_TRUE(norm.has_value());
    EXPECT_NEAR(*norm, before.to(at::kDouble).norm().item<double>(), 1e-12 * *norm);
    EXPECT_TRUE(at::allclose(gradients.all(), clipped_by_torchs_formula(before, limit), 1e-6));
    if (limit == 100.0) {
      EXPECT_TRUE(at::equal(gradients.all(), before));  // untouched
    }
  }
}

TEST(ClipGradients, ByNormComesFirst) {
  Gradients gradients(kPlan);
  const at::Tensor by_value = gradients.all().clamp(-0.5, 0.5);
  EXPECT_FALSE(gradients.clip({.value = 0.5, .norm = {}}).has_value());
  EXPECT_TRUE(at::equal(gradients.all(), by_value));

  Gradients both(kPlan);
  const at::Tensor before = both.all().clone();
  const std::optional<double> norm = both.clip({.value = 0.2, .norm = 3.0});
  EXPECT_NEAR(norm.value(), before.to(at::kDouble).norm().item<double>(), 1e-9);
  const at::Tensor expected = clipped_by_torchs_formula(before, 3.0).clamp(-0.2, 0.2);
  EXPECT_TRUE(at::allclose(both.all(), expected, 1e-6));
}

TEST(ClipGradients, WithoutLimitsNothingHappens) {
  Gradients gradients(kPlan);
  const at::Tensor before = gradients.all().clone();
  EXPECT_FALSE(gradients.clip({}).has_value());
  EXPECT_TRUE(at::equal(gradients.all(), before));
}

TEST(ClipGradients, FrozenParametersDoNotCount) {
  Gradients gradients(kPlan);
  const double whole = gradients.clip({.value = {}, .norm = 1e9}).value();
  gradients.flat_params.flatten({{2}, {0}, {1}}, {false, true, true});
  gradients.params[1].tensor.mutable_grad().fill_(3);
  gradients.params[2].tensor.mutable_grad().fill_(4);
  const std::optional<double> norm = gradients.clip({.value = {}, .norm = 1e9});
  EXPECT_NEAR(norm.value(), std::sqrt(5 * 9 + 100 * 16), 1e-9);
  EXPECT_NE(norm.value(), whole);
}

TEST(ClipGradients, WithoutTheSumOfSquaresThereIsNoNorm) {
  Gradients gradients(kPlan);
  EXPECT_THROW(clip_gradients({.value = {}, .norm = 1.0}, gradients.flat_params.buffers(), {}, {}),
               Error);
}

TEST(ClipGradients, OnlyWithinTheRegions) {
  Gradients gradients(kPlan);
  std::vector<FlatBuffer>& buffers = gradients.flat_params.buffers();
  for (FlatBuffer& buffer : buffers) buffer.grads_E.fill_(3);
  (void)clip_gradients({.value = 2.0, .norm = {}}, buffers, {{0, 10, 20}}, {});
  (void)clip_gradients({.value = {}, .norm = 1.0}, buffers, {{0, 30, 40}}, 4.0);
  EXPECT_TRUE(buffers[0].grads_E.slice(0, 10, 20).eq(2).all().item<bool>());
  EXPECT_TRUE(buffers[0].grads_E.slice(0, 30, 40).eq(1.5).all().item<bool>());
  EXPECT_EQ(buffers[0].grads_E.eq(3).sum().item<int64_t>(), buffers[0].grads_E.numel() - 20);
  EXPECT_TRUE(buffers[1].grads_E.eq(3).all().item<bool>());
}

}  // namespace clip_gradients_test
}  // namespace lockstep::optim
