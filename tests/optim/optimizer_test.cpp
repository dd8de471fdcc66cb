#include "optim/optimizer.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "optim/flat_params.h"

namespace lockstep::optim {
namespace optimizer_test {

/// Two weights and a bias in two buffers, in an order other than the table's.
struct Fixture {
  explicit Fixture(const OptimizerOptions& options)
      : params{{"a.weight", at::arange(6, at::kFloat).view({2, 3}).set_requires_grad(true), true,
                true},
               {"a.bias", at::ones({2}).set_requires_grad(true), false, false},
               {"b.weight", at::full({4}, 2.0F).set_requires_grad(true), true, true}},
        flat_params(params, {{2, 0}, {1}}, at::kCPU),
        optimizer(make_optimizer(options, flat_params.buffers(), params)),
        rates(initial_rates(options)) {}

  void step(double learning_rate, double grad) {
    for (FlatBuffer& buffer : flat_params.buffers())
      if (!buffer.frozen) buffer.grads_E.fill_(grad);
    StepRates now = rates;
    for (GroupRates& group : now) group.learning_rate = learning_rate;
    optimizer->step(now);
  }
  void freeze(const std::vector<bool>& trainable, const BufferPlan& plan) {
    optimizer->rebuild(flat_params.flatten(plan, trainable));
  }
  double first_of(size_t param) {
    return params[param].tensor.detach().flatten()[0].item<double>();
  }

  ParamTable params;
  FlatParams flat_params;
  std::unique_ptr<Optimizer> optimizer;
  StepRates rates;
};

TEST(FlatParams, TensorsAndGradientsBecomeViews) {
  Fixture f({.type = "sgd"});
  EXPECT_TRUE(at::equal(f.params[0].tensor.detach(), at::arange(6, at::kFloat).view({2, 3})));
  f.flat_params.buffers()[0].values_E.fill_(9);
  EXPECT_EQ(f.first_of(0), 9);
  EXPECT_EQ(f.first_of(2), 9);
  EXPECT_EQ(f.first_of(1), 1);
}

TEST(FlatParams, BackwardAddsIntoTheFlatBuffer) {
  Fixture f({.type = "sgd"});
  f.flat_params.zero_grads();
  for (int i = 0; i < 2; ++i) (f.params[0].tensor.sum() + 3 * f.params[1].tensor.sum()).backward();
  const std::vector<FlatBuffer>& buffers = f.flat_params.buffers();
  EXPECT_TRUE(at::equal(buffers[0].grads_E.narrow(0, 4, 6),
                        at::full({6}, 2.0F)));  // a.weight is after b.weight
  EXPECT_TRUE(at::equal(buffers[0].grads_E.narrow(0, 0, 4), at::zeros({4})));
  EXPECT_TRUE(at::equal(buffers[1].grads_E, at::full({2}, 6.0F)));
  f.flat_params.zero_grads();
  EXPECT_EQ(buffers[1].grads_E.abs().sum().item<float>(), 0);
}

TEST(FlatParams, APlanThatForgetsAParameterIsRefused) {
  ParamTable params{{"a", at::ones({2}).set_requires_grad(true)},
                    {"b", at::ones({2}).set_requires_grad(true)}};
  EXPECT_THROW(FlatParams(params, {{0}}, at::kCPU), Error);
  EXPECT_THROW(FlatParams(params, {{0, 0, 1}}, at::kCPU), Error);
}

TEST(FlatParams, FrozenParametersKeepValueAndMomentsUntilTheyThaw) {
  for (const std::string& type : optimizer_types()) {
    if (type == "sgd") continue;
    Fixture f(default_options(type));
    f.step(0.1, 1.0);
    const double before = f.first_of(0), moment = f.optimizer->slots_of(0)[0][0][0].item<double>();
    f.freeze({false, true, true}, {{2}, {0}, {1}});
    EXPECT_EQ(f.first_of(0), before);
    EXPECT_FALSE(f.params[0].tensor.requires_grad());
    EXPECT_FALSE(f.params[0].tensor.grad().defined());
    EXPECT_EQ(f.flat_params.num_trainable_elements(), 6);
    const double moving = f.first_of(2);
    f.step(0.1, 1.0);
    EXPECT_EQ(f.first_of(0), before);
    EXPECT_NE(f.first_of(2), moving);
    EXPECT_EQ(f.optimizer->slots_of(0)[0][0][0].item<double>(), moment);
    f.freeze({true, true, true}, {{2, 0}, {1}});
    f.step(0.1, 1.0);
    EXPECT_NE(f.first_of(0), before);
  }
}

TEST(FlatParams, ALayoutChangesNoUpdate) {
  Fixture one({.type = "adam"}), other({.type = "adam"});
  for (int i = 0; i < 3; ++i) one.step(0.1, 0.3), other.step(0.1, 0.3);
  other.freeze({true, true, true}, {{0}, {1}, {2}});
  one.step(0.1, 0.7), other.step(0.1, 0.7);
  for (size_t i = 0; i < 3; ++i)
    EXPECT_TRUE(at::equal(one.params[i].tensor, other.params[i].tensor)) << i;
}

TEST(FlatParams, BackwardReachesTheNewBuffers) {
  Fixture f({.type = "sgd"});
  f.freeze({true, true, false}, {{0}, {1}, {2}});
  (f.params[0].tensor.sum() + f.params[2].tensor.sum()).backward();
  EXPECT_TRUE(at::equal(f.flat_params.buffers()[0].grads_E, at::ones({6})));
  EXPECT_FALSE(f.flat_params.buffers()[2].grads_E.defined());
}

TEST(Groups, HaveRatesOfTheirOwn) {
  Fixture f({.type = "sgd", .weight_decay = 0.5});
  for (FlatBuffer& buffer : f.flat_params.buffers()) buffer.grads_E.fill_(1);
  f.optimizer->step({GroupRates{0.1, 0.0}, GroupRates{0.2, 1.0}});
  EXPECT_FLOAT_EQ(f.first_of(2), 2 - 0.1);
  EXPECT_FLOAT_EQ(f.first_of(1), 1 - 0.2 * (1 + 1));
}

TEST(LearningRateDecay, FollowsItsFormulas) {
  const LearningRateDecay exponential{.type = "exponential"};
  EXPECT_EQ(decayed_rate(exponential, 0.1, 0, 10, 100), 0.1);
  EXPECT_EQ(decayed_rate(exponential, 0.1, 19, 10, 100), 0.1);
  EXPECT_DOUBLE_EQ(decayed_rate(exponential, 0.1, 20, 10, 100), 0.094);
  EXPECT_DOUBLE_EQ(decayed_rate(exponential, 0.1, 45, 10, 100), 0.1 * 0.94 * 0.94);
  LearningRateDecay smooth = exponential;
  smooth.staircase = false;
  EXPECT_DOUBLE_EQ(decayed_rate(smooth, 0.1, 10, 10, 100), 0.1 * std::sqrt(0.94));
  // Over decay_steps, else over num_epochs_per_decay, else over the run; then the end's rate stays.
  LearningRateDecay shorter{.type = "polynomial", .end_learning_rate = 0.02};
  shorter.num_epochs_per_decay = 2.0;  // of 10 steps
  EXPECT_DOUBLE_EQ(decayed_rate(shorter, 0.1, 5, 10, 100), 0.08);
  EXPECT_DOUBLE_EQ(decayed_rate(shorter, 0.1, 20, 10, 100), 0.02);
  EXPECT_DOUBLE_EQ(decayed_rate(shorter, 0.1, 99, 10, 100), 0.02);
  shorter.decay_steps = 40;
  EXPECT_DOUBLE_EQ(decayed_rate(shorter, 0.1, 10, 10, 100), 0.08);
  EXPECT_DOUBLE_EQ(decayed_rate(shorter, 0.1, 40, 10, 100), 0.02);
  const LearningRateDecay polynomial{.type = "polynomial", .end_learning_rate = 0.02};
  EXPECT_DOUBLE_EQ(decayed_rate(polynomial, 0.1, 25, 10, 100), 0.08);
  EXPECT_DOUBLE_EQ(decayed_rate(polynomial, 0.1, 100, 10, 100), 0.02);
  EXPECT_DOUBLE_EQ(decayed_rate(polynomial, 0.1, 500, 10, 100), 0.02);
  EXPECT_EQ(decayed_rate({}, 0.1, 500, 10, 100), 0.1);
  LearningRateDecay wsd{.type = "wsd", .end_learning_rate = 0};
  wsd.warmup_steps = 50;
  EXPECT_DOUBLE_EQ(decayed_rate(wsd, 0.1, 25, 10, 100), 0.05);
  EXPECT_DOUBLE_EQ(decayed_rate(wsd, 0.1, 80, 10, 100), 0.1);
  EXPECT_DOUBLE_EQ(decayed_rate(wsd, 0.1, 90, 10, 100), 0.05) << "a fifth of the run";
  wsd.decay_steps = 80;
  EXPECT_DOUBLE_EQ(decayed_rate(wsd, 0.1, 75, 10, 100), 0.05) << "not during the warm-up";
}

TEST(LearningRateDecay, RisesAndFallsAlongACosine) {
  LearningRateDecay cosine{.type = "cosine", .end_learning_rate = 0.02};
  EXPECT_DOUBLE_EQ(decayed_rate(cosine, 0.1, 0, 10, 100), 0.1);
  EXPECT_DOUBLE_EQ(decayed_rate(cosine, 0.1, 50, 10, 100), 0.06);
  EXPECT_DOUBLE_EQ(decayed_rate(cosine, 0.1, 100, 10, 100), 0.02);
  EXPECT_DOUBLE_EQ(decayed_rate(cosine, 0.1, 500, 10, 100), 0.02);
  cosine.warmup_steps = 20;
  EXPECT_EQ(decayed_rate(cosine, 0.1, 0, 10, 100), 0);
  EXPECT_DOUBLE_EQ(decayed_rate(cosine, 0.1, 5, 10, 100), 0.025);
  EXPECT_DOUBLE_EQ(decayed_rate(cosine, 0.1, 20, 10, 100), 0.1);
  EXPECT_DOUBLE_EQ(decayed_rate(cosine, 0.1, 60, 10, 100), 0.06);
  EXPECT_DOUBLE_EQ(decayed_rate(cosine, 0.1, 100, 10, 100), 0.02);
  cosine.decay_steps = 10;
  EXPECT_DOUBLE_EQ(decayed_rate(cosine, 0.1, 25, 10, 100), 0.06);
  cosine.warmup_steps = {};
  cosine.warmup_epochs = 0.5;  // of 10 steps
  EXPECT_DOUBLE_EQ(decayed_rate(cosine, 0.1, 5, 10, 100), 0.1);
  EXPECT_DOUBLE_EQ(decayed_rate(cosine, 0.1, 15, 10, 100), 0.02);
}

TEST(Sgd, SubtractsRateTimesGradientAndDecaysWeightsOnly) {
  Fixture f({.type = "sgd", .weight_decay = 0.5});
  f.step(0.1, 1.0);
  EXPECT_FLOAT_EQ(f.first_of(2), 2 - 0.1 * (1 + 0.5 * 2));
  EXPECT_FLOAT_EQ(f.first_of(1), 1 - 0.1);
}

TEST(Momentum, KeepsAShareOfTheLastUpdate) {
  Fixture f({.type = "momentum", .momentum = 0.9});
  double value = 2, accumulated = 0;
  for (int i = 0; i < 5; ++i) {
    f.step(0.1, 1.0 + i);
    accumulated = 0.9 * accumulated + (1.0 + i);
    value -= 0.1 * accumulated;
  }
  EXPECT_NEAR(f.first_of(2), value, 1e-5);
}

TEST(Adam, FollowsTensorFlowsFormula) {
  const OptimizerOptions options{.type = "adam",
                                 .opt_epsilon = 0.1};  // large, so that its place shows
  Fixture f(options);
  double value = 2, m = 0, v = 0;
  for (int t = 1; t <= 5; ++t) {
    const double g = 0.3 * t;
    f.step(0.01, g);
    m = 0.9 * m + 0.1 * g;
    v = 0.999 * v + 0.001 * g * g;
    value -= 0.01 * std::sqrt(1 - std::pow(0.999, t)) / (1 - std::pow(0.9, t)) * m /
             (std::sqrt(v) + 0.1);
  }
  EXPECT_NEAR(f.first_of(2), value, 1e-6);
}

TEST(Optimizer, StateIsNamedByParameterAndLive) {
  Fixture f({.type = "adam"});
  StateList state = f.optimizer->state();
  ASSERT_EQ(state.size(), 7U);
  EXPECT_EQ(state[0].key, "optimizer/iterations");
  f.step(0.1, 1.0);
  EXPECT_EQ(state[0].tensor.item<int64_t>(), 1);
  for (const StateEntry& entry : state) {
    if (entry.key != "optimizer/a/weight/m") continue;
    EXPECT_EQ(entry.tensor.sizes(), (std::vector<int64_t>{2, 3}));
    EXPECT_FLOAT_EQ(entry.tensor[0][0].item<float>(), 0.1F);
  }
}

TEST(Optimizer, RestoredStateGoesOnBitForBit) {
  for (const std::string& type : optimizer_types()) {
    Fixture unbroken(default_options(type)), resumed(default_options(type));
    for (int i = 0; i < 3; ++i) unbroken.step(0.05, 0.7);
    StateList from = unbroken.optimizer->state(), to = resumed.optimizer->state();
    for (size_t i = 0; i < from.size(); ++i) to[i].tensor.copy_(from[i].tensor);
    for (size_t i = 0; i < 2; ++i)
      resumed.flat_params.buffers()[i].values_E.copy_(unbroken.flat_params.buffers()[i].values_E);
    unbroken.step(0.05, 0.3);
    resumed.step(0.05, 0.3);
    EXPECT_TRUE(at::equal(unbroken.flat_params.buffers()[0].values_E,
                          resumed.flat_params.buffers()[0].values_E))
        << type;
  }
}

/// A parameter that stands alone, and has the updates of these steps only.
double alone_after(const OptimizerOptions& options, int num_steps) {
  Fixture f(options);
  for (int i = 0; i < num_steps; ++i) f.step(0.1, 0.5);
  return f.first_of(2);
}

TEST(Optimizer, WhatThawsLateIsUpdatedAsWhatJustBegan) {
  for (const std::string type : {"adamw", "rmsprop"}) {
    OptimizerOptions options = default_options(type);
    options.weight_decay = 0;
    Fixture f(options);
    f.freeze({true, true, false}, {{0}, {1}, {2}});
    for (int i = 0; i < 20; ++i) f.step(0.1, 0.5);
    EXPECT_EQ(f.first_of(2), 2) << type;
    f.freeze({true, true, true}, {{2, 0}, {1}});
    for (int i = 0; i < 3; ++i) f.step(0.1, 0.5);
    EXPECT_EQ(f.first_of(2), alone_after(options, 3)) << type;
  }
}

TEST(Optimizer, WhatIsLeftOutKeepsValueSlotsAndCount) {
  for (const std::string type : {"momentum", "adam", "adamw", "rmsprop", "adagrad", "lion"}) {
    OptimizerOptions options = default_options(type);
    options.weight_decay = 0.1;
    Fixture f(options);
    f.step(0.1, 0.5);
    const double before = f.first_of(2);
    const at::Tensor slot = f.optimizer->slots_of(2)[0].clone();
    f.optimizer->exclude({2});
    f.step(0.1, 0.5);
    EXPECT_EQ(f.first_of(2), before) << type;
    EXPECT_TRUE(at::equal(f.optimizer->slots_of(2)[0], slot)) << type;
    f.step(0.1, 0.5);
    EXPECT_NE(f.first_of(2), before) << type;
    Fixture other(options);
    for (int i = 0; i < 3; ++i) other.step(0.1, 0.5);
    EXPECT_EQ(f.first_of(0), other.first_of(0)) << type;  // of the same buffer
    if (type != "adamw") continue;
    Fixture twice(options);
    for (int i = 0; i < 2; ++i) twice.step(0.1, 0.5);
    EXPECT_EQ(f.first_of(2), twice.first_of(2));
  }
}

TEST(Optimizer, ARefusedUpdateIsNotCountedOfAnyParameter) {
  Fixture f(default_options("adamw"));
  f.step(0.1, 0.5);
  const auto counts = [&f] {
    std::string text;
    for (const StateEntry& entry : f.optimizer->state())
      if (entry.key.ends_with("/updates") || entry.key.ends_with("/iterations"))
        text += std::to_string(entry.tensor.item<int64_t>()) + " ";
    return text;
  };
  EXPECT_EQ(counts(), "1 1 1 1 ");
  f.optimizer->exclude({0});
  f.step(0.1, 0.5);
  EXPECT_EQ(counts(), "2 1 2 2 ");
  f.optimizer->uncount();
  EXPECT_EQ(counts(), "1 1 1 1 ");
}

TEST(Optimizer, ASaveWithoutCountsOfParametersGoesOnWithTheCommonOne) {
  Fixture f(default_options("adamw")), old(default_options("adamw"));
  for (int i = 0; i < 3; ++i) f.step(0.1, 0.5), old.step(0.1, 0.5);
  for (const StateEntry& entry : old.optimizer->state())
    if (entry.key.ends_with("/updates")) entry.tensor.fill_(*entry.value_if_missing);
  f.step(0.1, 0.5);
  old.step(0.1, 0.5);
  EXPECT_EQ(old.first_of(0), f.first_of(0));
}

TEST(Optimizer, AResetOfMomentumKeepsSumsOfSquares) {
  for (const std::string type : {"momentum", "adam", "adagrad", "ftrl", "rmsprop"}) {
    Fixture f(default_options(type));
    f.step(0.1, 0.5);
    f.optimizer->reset_momentum(0);
    for (const StateEntry& entry : f.optimizer->state()) {
      if (!entry.key.starts_with("optimizer/a/weight/") || entry.key.ends_with("/updates"))
        continue;
      const bool is_momentum = entry.key.ends_with("/m") || entry.key.ends_with("/momentum");
      EXPECT_EQ(entry.tensor.abs().sum().item<double>() == 0, is_momentum) << type << entry.key;
    }
  }
}

}  // namespace optimizer_test
}  // namespace lockstep::optim
