// Kinds of objects other than tensors, modules and the common optimizers.
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include "base/error.h"
#include "base/step_clock.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/format/bundle_reader.h"
#include "checkpoint/torch_objects.h"
#include "checkpoint/torch_script.h"
#include "tests/checkpoint/save_fixture.h"

namespace lockstep::checkpoint {
namespace trackable_kinds_test {

using ::testing::ElementsAre;
using tests::TemporaryFolder;

TEST(TrackableKinds, AStepClockKeepsItsStep) {
  const TemporaryFolder folder;
  StepClock clock{.step = 41, .steps_per_epoch = 10};
  Checkpoint({{"clock", clock}}).save(folder.prefix());
  EXPECT_EQ(
      BundleReader(folder.prefix() + "-1").read("clock/.ATTRIBUTES/VARIABLE_VALUE").item<int64_t>(),
      41);
  StepClock other{.step = 3, .steps_per_epoch = 7};
  Checkpoint({{"clock", other}}).restore(folder.prefix() + "-1").assert_consumed();
  EXPECT_EQ(other.step, 41);
  EXPECT_EQ(other.steps_per_epoch, 7) << "a setting of the program";
}

TEST(TrackableKinds, AGeneratorGoesOnWithTheNumbersThatItWouldHaveDrawn) {
  const TemporaryFolder folder;
  for (const bool strictly : {false, true}) {
    at::Generator generator = at::detail::createCPUGenerator(5);
    (void)at::randn({3}, generator);
    Checkpoint checkpoint({{"random", generator}});
    const std::string save = checkpoint.save(folder.prefix());
    const at::Tensor expected = at::randn({7}, generator);
    at::Generator other = at::detail::createCPUGenerator(6);
    at::Tensor value = at::zeros({1});
    Checkpoint restored({{"random", other}});
    if (strictly)
      restored.load_weights_now(save);
    else
      restored.restore(save).assert_consumed();
    EXPECT_TRUE(at::equal(at::randn({7}, other), expected));
    // what happens to other objects leaves it as it is
    const at::Tensor next = at::randn({7}, generator);
    restored.add("value", value);
    restored.look_for_new();
    EXPECT_TRUE(at::equal(at::randn({7}, other), next));
  }
  EXPECT_THROW(Checkpoint({{"random", at::Generator()}}), Error);
}

at::Tensor lbfgs_step(torch::nn::Linear& net, torch::optim::LBFGS& optimizer) {
  const at::Tensor inputs = at::arange(12, at::kFloat).reshape({4, 3}).sin();
  return optimizer.step([&] {
    optimizer.zero_grad();
    const at::Tensor loss = (net->forward(inputs) - 1).pow(4).sum();
    loss.backward();
    return loss;
  });
}

TEST(TrackableKinds, LbfgsGoesOnBitForBitWithItsHistory) {
  for (const int64_t num_iterations : {1, 3}) {
    const TemporaryFolder folder;
    const auto options = torch::optim::LBFGSOptions(0.1).max_iter(num_iterations).history_size(4);
    torch::manual_seed(1);
    torch::nn::Linear unbroken(3, 2), resumed(3, 2);
    torch::optim::LBFGS first(unbroken->parameters(), options);
    for (int step = 0; step < 3; ++step) lbfgs_step(unbroken, first);
    Checkpoint({{"model", unbroken}, {"optimizer", first}}).save(folder.prefix());
    torch::optim::LBFGS second(resumed->parameters(), options);
    Checkpoint({{"model", resumed}, {"optimizer", second}})
        .restore(folder.prefix() + "-1")
        .assert_consumed();
    for (int step = 3; step < 9; ++step)
      EXPECT_TRUE(at::equal(lbfgs_step(unbroken, first), lbfgs_step(resumed, second))) << step;
    EXPECT_TRUE(at::equal(unbroken->weight, resumed->weight));
  }
}

TEST(TrackableKinds, LbfgsAfterOneIterationHasNoHistoryYet) {
  const TemporaryFolder folder;
  const auto options = torch::optim::LBFGSOptions(0.1).max_iter(1);
  torch::nn::Linear unbroken(3, 2), resumed(3, 2);
  torch::optim::LBFGS first(unbroken->parameters(), options);
  lbfgs_step(unbroken, first);
  Checkpoint({{"model", unbroken}, {"optimizer", first}}).save(folder.prefix());
  torch::optim::LBFGS second(resumed->parameters(), options);
  Checkpoint({{"model", resumed}, {"optimizer", second}})
      .restore(folder.prefix() + "-1")
      .assert_consumed();
  for (int step = 1; step < 5; ++step)
    EXPECT_TRUE(at::equal(lbfgs_step(unbroken, first), lbfgs_step(resumed, second))) << step;
}

/// The optimizer that is restored has stepped by itself, more often or less often than the saved
/// one.
TEST(TrackableKinds, LbfgsThatHasSteppedGetsExactlyTheSavedHistory) {
  const auto options = torch::optim::LBFGSOptions(0.1).max_iter(2).history_size(9);
  for (const int steps_before : {1, 6}) {
    const TemporaryFolder folder;
    torch::nn::Linear unbroken(3, 2), resumed(3, 2);
    torch::optim::LBFGS first(unbroken->parameters(), options);
    for (int step = 0; step < 3; ++step) lbfgs_step(unbroken, first);
    Checkpoint({{"model", unbroken}, {"optimizer", first}}).save(folder.prefix());
    torch::optim::LBFGS second(resumed->parameters(), options);
    for (int step = 0; step < steps_before; ++step) lbfgs_step(resumed, second);
    Checkpoint restored({{"model", resumed}, {"optimizer", second}});
    restored.restore(folder.prefix() + "-1").assert_consumed().assert_existing_objects_matched();
    for (int step = 3; step < 6; ++step)
      EXPECT_TRUE(at::equal(lbfgs_step(unbroken, first), lbfgs_step(resumed, second))) << step;
    restored.look_for_new();  // what has come since stays
    for (int step = 6; step < 9; ++step)
      EXPECT_TRUE(at::equal(lbfgs_step(unbroken, first), lbfgs_step(resumed, second))) << step;
    EXPECT_TRUE(at::equal(unbroken->weight, resumed->weight));
  }
}

/// One step of SGD with momentum over the given parameters, whose gradients are 1.
void momentum_step(const std::vector<at::Tensor>& with_gradient, torch::optim::SGD& optimizer) {
  optimizer.zero_grad();
  for (const at::Tensor& each : with_gradient) each.mutable_grad() = at::ones_like(each);
  optimizer.step();
}

TEST(TrackableKinds, MomentsThatTheSaveLacksGoAndComeBackWhereTheRestoreFails) {
  const TemporaryFolder folder;
  const auto options = torch::optim::SGDOptions(0.1).momentum(0.9);
  const at::Tensor a = at::zeros({2}).requires_grad_(), b = at::zeros({2}).requires_grad_();
  torch::optim::SGD saved({a, b}, options);
  momentum_step({a}, saved);  // b has no momentum yet
  Checkpoint({{"a", a}, {"b", b}, {"optimizer", saved}}).save(folder.prefix());

  const at::Tensor c = at::ones({2}).requires_grad_(), d = at::ones({2}).requires_grad_();
  torch::optim::SGD other({c, d}, options);
  for (int step = 0; step < 3; ++step) momentum_step({c, d}, other);
  const auto momentum_of = [&](const at::Tensor& param) {
    const auto& states = other.state();
    const auto place = states.find(param.unsafeGetTensorImpl());
    return place == states.end()
               ? at::Tensor()
               : static_cast<torch::optim::SGDParamState&>(*place->second).momentum_buffer();
  };
  const at::Tensor before = momentum_of(d).clone();
  {  // a form that does not fit: nothing changes
    const at::Tensor wrong = at::zeros({3});
    EXPECT_THROW(
        Checkpoint({{"a", c}, {"b", wrong}, {"optimizer", other}}).restore(folder.prefix() + "-1"),
        Error);
    ASSERT_TRUE(momentum_of(d).defined());
    EXPECT_TRUE(at::equal(momentum_of(d), before));
  }
  Checkpoint({{"a", c}, {"b", d}, {"optimizer", other}})
      .restore(folder.prefix() + "-1")
      .assert_consumed();
  EXPECT_TRUE(at::equal(momentum_of(c), at::ones({2})));
  EXPECT_FALSE(momentum_of(d).defined());
  momentum_step({d}, other);
  EXPECT_TRUE(at::equal(momentum_of(d), at::ones({2}))) << "as in its first step";
}

torch::jit::Module script_module(double value) {
  torch::jit::Module inner("inner"), outer("outer");
  inner.register_parameter("weight", at::full({2, 3}, value), /*is_buffer=*/false);
  inner.register_buffer("mean", at::full({3}, value + 1));
  outer.register_module("fc1", inner);
  outer.register_parameter("scale", at::full({1}, value + 2), /*is_buffer=*/false);
  return outer;
}

TEST(TrackableKinds, ATorchScriptModuleIsSavedUnderTheNamesOfItsPartsAndRestoredInPlace) {
  const TemporaryFolder folder;
  Checkpoint({{"model", script_module(5)}}).save(folder.prefix());
  const torch::jit::Module module = script_module(0);
  const at::Tensor weight = module.attr("fc1").toModule().attr("weight").toTensor();
  Checkpoint({{"model", module}}).restore(folder.prefix() + "-1").assert_consumed();
  EXPECT_TRUE(at::equal(weight, at::full({2, 3}, 5.0))) << "the module's own memory";
  std::vector<std::string> names;
  const BundleReader reader(folder.prefix() + "-1");
  for (const auto& [name, entry] : reader.index().entries)
    if (name.starts_with("model/")) names.push_back(name.substr(0, name.find("/.ATTR")));
  EXPECT_THAT(names, ElementsAre("model/fc1/mean", "model/fc1/weight", "model/scale"));
}

}  // namespace trackable_kinds_test
}  // namespace lockstep::checkpoint
