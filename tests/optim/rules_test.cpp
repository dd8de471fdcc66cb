// Each rule by itself: kernels and ATen's operations agree, and pruned weights stay +0.
#include <algorithm>
#include <bit>
#include <set>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/sin.h>
#include <c10/util/accumulate.h>
#include <gtest/gtest.h>

#include "optim/flat_training.h"
#include "optim/optimizer.h"

namespace lockstep::optim {
namespace rules_test {

class Rules : public ::testing::TestWithParam<OptimizerOptions> {};
INSTANTIATE_TEST_SUITE_P(All, Rules, ::testing::ValuesIn(all_options()));

/// float64 has no kernels of ours: these are ATen's operations.
TEST_P(Rules, KernelsFollowAtensOperations) {
  Training floats(GetParam()), doubles(GetParam(), at::kDouble);
  const double tolerance = GetParam().type == "lion" ? 1e-4 : 1e-5;  // Lion jumps where 0 is near
  for (int i = 0; i < 30; ++i) floats.step(), doubles.step();
  for (size_t i = 0; i < floats.params.size(); ++i)
    EXPECT_TRUE(at::allclose(floats.params[i].tensor.detach().to(at::kDouble),
                             doubles.params[i].tensor.detach(), tolerance, tolerance))
        << floats.params[i].name;
  const StateList of_floats = floats.optimizer->state(), of_doubles = doubles.optimizer->state();
  ASSERT_EQ(of_floats.size(), of_doubles.size());
  for (size_t i = 1; i < of_floats.size(); ++i)
    EXPECT_TRUE(at::allclose(of_floats[i].tensor.to(at::kDouble),
                             of_doubles[i].tensor.to(at::kDouble), 1e-4, 1e-4))
        << of_floats[i].key;
}

/// One step with gradients that are a function of step and parameter.
void step_by_param(Training& training, int64_t step, const at::Tensor& found_inf = {}) {
  for (FlatBuffer& buffer : training.flat_params.buffers())
    for (const FlatSlice& slice : buffer.slices)
      buffer.grads_E.narrow(0, slice.offset_E, slice.num_elements)
          .copy_(numbers(slice.num_elements, 10 * step + slice.param));
  training.optimizer->step(training.rates, {}, found_inf);
}

std::string bits_of(Training& training) {
  std::string bits;
  const auto add = [&](const at::Tensor& tensor) {
    bits.append(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
  };
  for (const Param& param : training.params) add(param.tensor);
  for (const StateEntry& entry : training.optimizer->state()) add(entry.tensor);
  return bits;
}

/// The device's number decides: 1 leaves weights, slots and count as they are.
TEST_P(Rules, ARefusedUpdateChangesNothing) {
  Training plain(GetParam(), at::kDouble), some(GetParam(), at::kDouble);
  EXPECT_FALSE(Training(GetParam()).optimizer->takes_found_inf());  // kernels of ours
  const std::set<std::string> fused{"sgd", "momentum", "adam", "adamw"};
  EXPECT_EQ(some.optimizer->takes_found_inf(), fused.contains(GetParam().type));
  if (!some.optimizer->takes_found_inf()) return;
  const at::Tensor counts = at::zeros({1}), found_inf = at::ones({1});
  for (int64_t step = 0; step < 5; ++step) {
    step_by_param(plain, step);
    const std::string before = bits_of(some);
    step_by_param(some, 100 + step, found_inf);
    some.optimizer->uncount();
    EXPECT_EQ(bits_of(some), before);
    step_by_param(some, step, counts);
    EXPECT_EQ(bits_of(some), bits_of(plain));
  }
}

/// ATen's fused kernels take all buffers of a group at once.
TEST_P(Rules, DoNotDependOnHowParametersLieInBuffers) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    Training together(GetParam(), dtype), apart(GetParam(), dtype, {{2}, {0}, {1}});
    for (int step = 0; step < 5; ++step)
      for (Training* training : {&together, &apart}) step_by_param(*training, step);
    for (size_t i = 0; i < together.params.size(); ++i)
      EXPECT_TRUE(at::allclose(together.params[i].tensor.detach(), apart.params[i].tensor.detach(),
                               1e-6, 1e-6))
          << together.params[i].name << " " << dtype;
    const StateList of_both = together.optimizer->state(), of_each = apart.optimizer->state();
    ASSERT_EQ(of_both.size(), of_each.size());
  }
}

TEST_P(Rules, TrainBfloat16) {
  Training narrow(GetParam(), at::kBFloat16), wide(GetParam());
  for (int i = 0; i < 2; ++i) narrow.step(), wide.step();
  EXPECT_TRUE(at::allclose(narrow.params[1].tensor.detach().to(at::kFloat),
                           wide.params[1].tensor.detach(), 0.05, 0.05));
}

bool is_plus_zero(float value) { return std::bit_cast<uint32_t>(value) == 0; }

/// Dense: packed ones are not touched at all.
TEST_P(Rules, PrunedWeightsAndTheirSlotsStayPlusZero) {
  Training training(GetParam());
  training.steps(2);
  training.prune(0.8, true);
  training.steps(20);
  const auto expect_zeros = [&](const at::Tensor& flat_E) {
    for (int64_t i = 0; i < flat_E.numel(); ++i)
      ASSERT_TRUE(is_kept(training.bits.data(), i) ||
                  is_plus_zero(flat_E.const_data_ptr<float>()[i]))
          << i;
  };
  expect_zeros(training.flat_params.buffers()[0].values_E);
  for (const FlatSlice& slice : training.flat_params.buffers()[0].slices)
    for (const at::Tensor& slot : training.optimizer->slots_of(slice.param))
      for (int64_t i = 0; i < slice.num_elements; ++i)
        ASSERT_TRUE(is_kept(training.bits.data(), slice.offset_E + i) ||
                    is_plus_zero(slot.const_data_ptr<float>()[i]))
            << i;
}

TEST_P(Rules, DoNothingToWeightsAtRateZero) {
  Training training(GetParam());
  training.steps(2);
  const at::Tensor before = training.flat_params.buffers()[0].values_E.clone();
  for (GroupRates& rates : training.rates) rates.learning_rate = 0;
  training.step();
  if (GetParam().type == "rmsprop" || GetParam().type == "momentum") return;  // they roll on
  EXPECT_TRUE(at::equal(training.flat_params.buffers()[0].values_E, before));
}

/// Each rule's kernel on each path, dense and packed, on one thread and two.
template <typename... Rule>
struct OnAllPaths {
  static void compare() { (compare_one<Rule>(), ...); }

  template <typename One>
  static void compare_one() {
    const OptimizerOptions options{.opt_epsilon = 1e-3, .ftrl_l1 = 0.01};
    const GroupRates rates{0.01, 0.02};
    for (const double kept : {1.0, 0.3}) {
      std::vector<at::Tensor> found;
      for (const SimdPath path : simd_paths())
        for (const int threads : {1, 2})
          found.push_back(updated(One(options, rates, 3), {options, rates}, kept, path, threads));
      for (const at::Tensor& one : found) EXPECT_TRUE(at::equal(one, found.front())) << kept;
      EXPECT_TRUE(found.front().isfinite().all().item<bool>());
    }
  }

  /// Values, gradients and slots after one update.
  template <typename One>
  static at::Tensor updated(const One& rule, const rules::WeightDecay<float>& decay, double kept,
                            SimdPath path, int threads) {
    constexpr int64_t kNum = 200'077;
    const int before = at::get_num_threads();
    at::set_num_threads(threads);
    const PackedMask mask =
        kept == 1 ? PackedMask() : PackedMask(random_bits(kNum, kept, 5), 0, kNum);
    const at::Tensor all = numbers(4 * kNum, 7).view({4, kNum});
    all.narrow(0, 2, 2).abs_();  // sums of squares are not negative
    const auto floats = [&](int64_t row) { return all[row].mutable_data_ptr<float>(); };
    update_region(mask, {kNum, floats(0), floats(1)}, {floats(2), floats(3)}, decay, rule, path);
    at::set_num_threads(before);
    return all;
  }
};

TEST(Kernels, GiveTheSameBitsOnAllPathsAndThreads) { rules::OfAll<OnAllPaths>::compare(); }

TEST(Lion, StepsByTheRateInEachElement) {
  ParamTable params{{"a", at::zeros({3}).set_requires_grad(true), true, true}};
  FlatParams flat_params(params, {{0}}, at::kCPU);
  const auto optimizer = make_optimizer(default_options("lion"), flat_params.buffers(), params);
  flat_params.buffers()[0].grads_E.copy_(at::tensor({0.5F, -1e-6F, 0.0F}));
  optimizer->step({GroupRates{0.1, 0}, GroupRates{0.1, 0}});
  EXPECT_TRUE(at::equal(params[0].tensor.detach(), at::tensor({-0.1F, 0.1F, 0.0F})));
}

TEST(DecoupledDecay, ShrinksWeightsApartFromTheGradient) {
  for (const bool decoupled : {false, true}) {
    ParamTable params{{"a", at::full({1}, 2.0F).set_requires_grad(true), true, true}};
    FlatParams flat_params(params, {{0}}, at::kCPU);
    OptimizerOptions options = default_options("adagrad");
    options.decoupled = decoupled;
    const auto optimizer = make_optimizer(options, flat_params.buffers(), params);
    flat_params.buffers()[0].grads_E.fill_(0.5F);
    optimizer->step({GroupRates{0.1, 0.3}, GroupRates{}});
    const double gradient = decoupled ? 0.5 : 0.5 + 0.3 * 2;
    const double shrunk = decoupled ? 2 * (1 - 0.1 * 0.3) : 2;
    EXPECT_NEAR(params[0].tensor.item<float>(),
                shrunk - 0.1 * gradient / std::sqrt(0.1 + gradient * gradient), 1e-6);
  }
}

}  // namespace rules_test
}  // namespace lockstep::optim
