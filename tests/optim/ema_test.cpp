#include "optim/flat_params.h"

#include <stdexcept>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "optim/flat_training.h"

namespace lockstep::optim {
namespace ema_test {

constexpr double kDecay = 0.97;

at::Tensor weight(int64_t num_elements, int64_t seed) {
  return numbers(num_elements, seed).set_requires_grad(true);
}

void move(ParamTable& params, int64_t step) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < params.size(); ++i)
    params[i].tensor.add_(numbers(params[i].tensor.numel(), 1000 * step + static_cast<int64_t>(i)));
}

TEST(Ema, FollowsTheWeightsByTheFormula) {
  ParamTable params{{"a", weight(7, 1)}, {"b", weight(100, 2)}};
  Ema ema(kDecay, params);
  EXPECT_TRUE(ema.begin());
  std::vector<at::Tensor> expected;
  for (const Param& param : params) expected.push_back(param.tensor.detach().to(at::kDouble));
  for (int64_t n = 1; n <= 400; ++n) {
    move(params, n);
    ema.update();
    const double decay =
        std::min(kDecay, (1.0 + static_cast<double>(n)) / (10.0 + static_cast<double>(n)));
    for (size_t i = 0; i < params.size(); ++i)
      expected[i] = decay * expected[i] + (1 - decay) * params[i].tensor.detach().to(at::kDouble);
  }
  EXPECT_EQ(Ema::decay_at(kDecay, 1), 2.0 / 11);  // the first updates count more ...
  EXPECT_EQ(Ema::decay_at(kDecay, 400), kDecay);  // ... until the decay itself is less
  for (size_t i = 0; i < params.size(); ++i)
    EXPECT_TRUE(
        at::allclose(ema.of(static_cast<int64_t>(i)).to(at::kDouble), expected[i], 1e-5, 1e-6));
}

TEST(Ema, WhatDoesNotMoveIsItsOwnAverage) {
  ParamTable params{{"frozen", weight(33, 1)}};
  Ema ema(kDecay, params);
  ema.begin();
  for (int n = 0; n < 50; ++n) ema.update();
  EXPECT_TRUE(at::equal(ema.of(0), params[0].tensor.detach()));
}

TEST(Ema, NoBitDependsOnThreadsOrPlaces) {
  const int num_threads = at::get_num_threads();
  constexpr int64_t kNum = 300007, kPart = 12345;
  ParamTable params{{"whole", weight(kNum, 1)}};
  ParamTable part{{"part", params[0].tensor.detach().narrow(0, kPart, 71).clone()}};
  std::vector<at::Tensor> averages;
  Ema of_part(kDecay, part);
  of_part.begin();
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    ParamTable copy{{"whole", params[0].tensor.detach().clone()}};
    Ema ema(kDecay, copy);
    ema.begin();
    for (int64_t n = 1; n <= 3; ++n) {
      move(copy, n);
      ema.update();
      if (threads > 1) continue;
      part[0].tensor.copy_(copy[0].tensor.narrow(0, kPart, 71));
      of_part.update();
    }
    averages.push_back(ema.of(0));
  }
  at::set_num_threads(num_threads);
  for (const at::Tensor& average : averages) expect_same(average, averages[0]);
  expect_same(of_part.of(0), averages[0].narrow(0, kPart, 71));
}

TEST(Ema, OtherTypesAreAveragedToo) {
  ParamTable params{{"wide", weight(9, 1).detach().to(at::kDouble)}};
  const at::Tensor start = params[0].tensor.clone();
  Ema ema(0.9, params);
  ema.begin();
  params[0].tensor.add_(1);
  ema.update();
  EXPECT_TRUE(at::allclose(ema.of(0), start + 9.0 / 11, 0, 1e-12));
}

TEST(Ema, GoesOnFromASave) {
  ParamTable params{{"a", weight(7, 1)}}, other{{"a", weight(7, 5)}}, bare{{"a", weight(7, 6)}};
  Ema ema(kDecay, params), resumed(kDecay, other), without(kDecay, bare);
  ema.begin();
  for (int64_t n = 1; n <= 5; ++n) move(params, n), ema.update();
  copy_state(ema.state(), resumed.state());
  for (const StateEntry& entry :
       without.state()) {  // as a restore does with a save that lacks them
    ASSERT_TRUE(entry.value_if_missing);
    entry.tensor.fill_(*entry.value_if_missing);
  }
  EXPECT_EQ(ema.state()[1].key, "ema/a");
  EXPECT_FALSE(resumed.begin());
  expect_same(resumed.of(0), ema.of(0));
  EXPECT_TRUE(without.begin());
  expect_same(without.of(0), bare[0].tensor.detach());
}

TEST(Ema, OffItIsNothing) {
  ParamTable params{{"a", weight(7, 1)}};
  Ema ema(std::nullopt, params);
  EXPECT_FALSE(ema.begin());
  ema.update();
  EXPECT_FALSE(ema.of(0).defined());
  EXPECT_TRUE(ema.state().empty());
  EXPECT_TRUE(ema.params().empty());
  const EmaInModel nothing(&ema), none(nullptr);
  expect_same(params[0].tensor.detach(), weight(7, 1).detach());
}

TEST(EmaInModel, StandsForTheWeightsAndGivesThemBack) {
  Training training(options_of("momentum"));
  Ema ema(kDecay, training.params);
  ema.begin();
  training.step();
  ema.update();
  const void* const memory = training.params[0].tensor.const_data_ptr();
  const at::Tensor before = training.params[0].tensor.detach().clone();
  try {
    const EmaInModel averaged(&ema);
    EXPECT_EQ(training.params[0].tensor.const_data_ptr(), ema.of(0).const_data_ptr());
    EXPECT_TRUE(training.params[0].tensor.requires_grad());
    EXPECT_FALSE(at::equal(training.params[0].tensor.detach(), before));
    throw std::runtime_error("an evaluation failed");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(training.params[0].tensor.const_data_ptr(), memory);
  expect_same(training.params[0].tensor.detach(), before);
  training.flat_params.require_views();  // updates reach the weights as before
  training.step();
  EXPECT_FALSE(at::equal(training.params[0].tensor.detach(), before));
}

}  // namespace ema_test
}  // namespace lockstep::optim
