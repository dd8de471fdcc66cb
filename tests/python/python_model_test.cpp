#include "python/python_types.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "optim/flat_params.h"
#include "python_files.h"
#include "support/temporary_folder.h"

namespace lockstep::python {
namespace python_model_test {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using tests::fault_of;
using tests::python_args;

model::ModelInputs inputs(int64_t seed = 17) {
  return {.input_shape = {4}, .num_classes = 3, .seed = seed};
}

std::vector<std::string> names_of(const model::Model& net) {
  std::vector<std::string> names;
  for (const Param& param : net.params()) names.push_back(param.name);
  return names;
}

TEST(PythonModel, HasTheParametersOfStateDictAndTiedOnesOnce) {
  const PythonModel net(python_args("nets.py", "Plain"), inputs());
  EXPECT_THAT(names_of(net),
              ElementsAre("first.weight", "first.bias", "second.weight", "second.bias",
                          "third.bias", "classifier.weight", "classifier.bias"));
  EXPECT_TRUE(net.params()[0].prunable && net.params()[0].decayed);
  EXPECT_FALSE(net.params()[1].prunable || net.params()[1].decayed);
}

TEST(PythonModel, LayersThatOwnATrainedWeightCallTheHook) {
  /// Doubles inputs, and weights of the first layer.
  struct Doubling final : LayerHook {
    at::Tensor input(int64_t layer, const at::Tensor& input) override {
      calls.push_back(layer);
      return input * 2;
    }
    at::Tensor weight(int64_t layer, const at::Tensor& weight) override {
      return layer == 0 ? weight * 2 : weight;
    }
    std::vector<int64_t> calls;
  };
  PythonModel net(python_args("nets.py", "Plain"), inputs());
  std::vector<std::string> layers;
  for (const LayerInfo& layer : net.layers()) {
    layers.push_back(layer.name);
    EXPECT_EQ(net.params()[static_cast<size_t>(layer.weight_param)].name, layer.name + ".weight");
  }
  EXPECT_THAT(layers, ElementsAre("first", "second", "classifier"));  // third has second's weight
  const at::Tensor points_BX = at::rand({5, 4});
  const at::Tensor plain_BC = net.forward(points_BX);
  Doubling hook;
  net.set_layer_hook(&hook);
  const auto param = [&](size_t i) { return net.params()[i].tensor; };
  const auto layer = [&](const at::Tensor& values, size_t weight, size_t bias, double factor) {
    return at::linear(values * factor, param(weight), param(bias));
  };
  const at::Tensor first = layer(points_BX, 0, 1, 4).tanh();
  const at::Tensor third = layer(layer(first, 2, 3, 2).tanh(), 2, 4, 1).tanh();
  const at::Tensor expected_BC = layer(third, 5, 6, 2);
  const at::Tensor rounded_BC = net.forward(points_BX);
  EXPECT_TRUE(at::allclose(rounded_BC, expected_BC));
  EXPECT_THAT(hook.calls, ElementsAre(0, 1, 2));
  rounded_BC.sum().backward();
  const at::Tensor grad = param(0).grad().clone();
  param(0).mutable_grad().zero_();
  expected_BC.sum().backward();
  EXPECT_TRUE(at::allclose(param(0).grad(), grad));
  net.set_layer_hook(nullptr);
  EXPECT_TRUE(at::equal(net.forward(points_BX), plain_BC));
}

TEST(PythonModel, AHookThatThrowsIsAFaultOfForward) {
  struct Throwing final : LayerHook {
    at::Tensor input(int64_t, const at::Tensor&) override {
      throw Error(ExitCode::kBug, "recal", "no range");
    }
    at::Tensor weight(int64_t, const at::Tensor& weight) override { return weight; }
  };
  PythonModel net(python_args("nets.py", "Plain"), inputs());
  Throwing hook;
  net.set_layer_hook(&hook);
  EXPECT_THAT(fault_of([&] {
                net.forward(at::rand({5, 4}));
              }),
              AllOf(StartsWith("78 "), HasSubstr("no range")));
}

TEST(PythonModel, FrozenNormsGoByTheirMovingStatistics) {
  PythonModel net(python_args("nets.py", "Noisy"), inputs());
  EXPECT_TRUE(net.layers().at(0).has_batch_norm);
  const auto mean = [&] {
    for (const model::Buffer& buffer : net.buffers())
      if (buffer.name == "norm.running_mean") return buffer.tensor.clone();
    return at::Tensor();
  };
  const auto pass = [&] {
    net.begin_forward({.step = 1, .first_sample = 0});
    (void)net.forward(at::rand({6, 4}));
  };
  const at::Tensor before = mean();
  pass();
  const at::Tensor moved = mean();
  EXPECT_FALSE(at::equal(moved, before));
  net.batch_norms().set_frozen(true);
  net.set_training(false);
  net.set_training(true);
  pass();
  EXPECT_TRUE(at::equal(mean(), moved));
}

TEST(PythonModel, IsBuiltFromTheSeedAlone) {
  const PythonModel a(python_args("nets.py", "Plain"), inputs(1)),
      b(python_args("nets.py", "Plain"), inputs(1)), c(python_args("nets.py", "Plain"), inputs(2));
  EXPECT_TRUE(at::equal(a.params()[0].tensor, b.params()[0].tensor));
  EXPECT_FALSE(at::equal(a.params()[0].tensor, c.params()[0].tensor));
}

TEST(PythonModel, ComputesWithTheFlatBuffersAndGivesThemItsGradients) {
  PythonModel net(python_args("nets.py", "Plain"), inputs());
  const at::Tensor points_BX = at::ones({5, 4});
  const at::Tensor before_BC = net.forward(points_BX).detach();
  optim::FlatParams flat(net.params(), {{0, 2, 5}, {1, 3, 4, 6}}, at::kCPU);
  EXPECT_TRUE(at::equal(net.forward(points_BX), before_BC));
  net.forward(points_BX).sum().backward();
  net.after_backward();
  flat.require_views();
  EXPECT_GT(flat.buffers()[0].grads_E.abs().sum().item<double>(), 0);
  flat.buffers()[0].values_E.zero_();
  flat.buffers()[1].values_E.zero_();
  EXPECT_TRUE(at::equal(net.forward(points_BX), at::zeros({5, 3})));
}

TEST(PythonModel, DropsByStepAndPlaceAlone) {
  PythonModel net(python_args("nets.py", "Noisy"), inputs());
  const at::Tensor points_BX = at::rand({6, 4});
  const auto at_step = [&](int64_t step, int64_t first) {
    net.begin_forward({.step = step, .first_sample = first});
    return net.forward(points_BX).detach();
  };
  const at::Tensor once = at_step(3, 0);
  EXPECT_FALSE(at::equal(at_step(4, 0), once));
  EXPECT_FALSE(at::equal(at_step(3, 6), once));
  EXPECT_TRUE(at::equal(at_step(3, 0), once));
  net.set_training(false);
  EXPECT_TRUE(at::equal(at_step(3, 0), at_step(4, 0)));
}

TEST(PythonModel, LooksItsBuffersUpAnew) {
  PythonModel net(python_args("nets.py", "Noisy"), inputs());
  ASSERT_EQ(net.buffers().size(), 4U);
  EXPECT_EQ(net.buffers()[0].name, "average");
  (void)net.forward(at::ones({6, 4}));  // puts another tensor in its place
  EXPECT_GT(net.buffers()[0].tensor.abs().sum().item<double>(), 0);
  EXPECT_TRUE(net.buffers()[0].moved_by_forward);
}

TEST(PythonModel, AFrozenParameterStaysAParameter) {
  PythonModel net(python_args("nets.py", "Noisy"), inputs());
  const size_t num_buffers = net.buffers().size();
  const optim::FlatParams flat(net.params(), {{0, 4}, {1, 2, 3, 5}}, at::kCPU);
  net.params()[0].tensor.set_requires_grad(false);  // as a recipe does
  EXPECT_EQ(net.buffers().size(), num_buffers);
  net.forward(at::ones({6, 4})).sum().backward();
  net.after_backward();
}

std::vector<std::string> names_of(const std::vector<model::Buffer>& buffers) {
  std::vector<std::string> names;
  for (const model::Buffer& buffer : buffers) names.push_back(buffer.name);
  return names;
}

TEST(PythonModel, AllThatIsNotTrainedIsABuffer) {
  const PythonModel net(python_args("odd_nets.py", "Teacher"), inputs());
  EXPECT_THAT(names_of(net.buffers()), ElementsAre("teacher.weight", "teacher.bias"));
  EXPECT_THAT(names_of(net.unsaved_buffers()), ElementsAre("center"));
}

/// Frozen parameters also move to a GPU (tests/integration/gpu_test.py), but cannot move to `meta`.
TEST(PythonModel, BuffersMoveToTheDeviceAndSharedOnesStayOne) {
  PythonModel net(python_args("odd_nets.py", "Mask"), inputs());
  net.move_buffers_to(at::kMeta);
  ASSERT_EQ(net.buffers().size(), 1U);  // of two modules
  EXPECT_TRUE(net.buffers()[0].tensor.is_meta());
}

TEST(PythonModel, ForwardDrawsFromEveryGeneratorByStepAndPlaceAlone) {
  PythonModel net(python_args("odd_nets.py", "LayerDrop"), inputs());
  const at::Tensor points_BX = at::ones({2, 4});
  const auto at_step = [&](int64_t step) {
    net.begin_forward({.step = step, .first_sample = 0});
    return net.forward(points_BX).detach();
  };
  int num_others = 0;
  for (int64_t step = 0; step < 20; ++step) {
    const at::Tensor once = at_step(step);
    (void)net.forward(points_BX);
    EXPECT_TRUE(at::equal(at_step(step), once)) << step;
    num_others += at::equal(at_step(0), once) ? 0 : 1;
  }
  EXPECT_GT(num_others, 0);
}

TEST(PythonModel, OfWeightNormTheDirectionsArePrunable) {
  const PythonModel net(python_args("odd_nets.py", "Normed"), inputs());
  std::vector<std::string> prunable;
  for (const Param& param : net.params())
    if (param.prunable) prunable.push_back(param.name);
  EXPECT_THAT(prunable, ElementsAre("first.weight_v", "second.parametrizations.weight.original1"));
}

TEST(PythonModel, TakesKeywordsAndPrintsBothListsIfOneIsMissing) {
  PythonModel net(python_args("keyword_nets.py", "Needs"), inputs());
  const at::Tensor values = at::ones({2, 4});
  EXPECT_EQ(
      net.forward_of({.tensors = {values, values}, .names = {"pixel_values", "input_ids"}}).sizes(),
      (std::vector<int64_t>{2, 3}));
  EXPECT_THAT(fault_of([&] { (void)net.forward_of({.tensors = {values}, .names = {"tokens"}}); }),
              AllOf(StartsWith("78 "),
                    HasSubstr("Needs.forward needs input_ids, pixel_values, which the batch lacks"),
                    HasSubstr("keys of the batch: tokens")));
}

TEST(PythonModel, ItsOwnLossComesWithItsOutputsAndLeavesOutWhatItShifts) {
  const at::Tensor tokens_BT = at::arange(6, at::kLong).view({2, 3});
  model::ModelInputs data = inputs();
  data.example = {.tensors = {tokens_BT, tokens_BT}, .names = {"input_ids", "labels"}};
  PythonModel shifts(python_args("keyword_nets.py", "Shifts"), data);
  EXPECT_EQ(shifts.num_unused_targets(), 1);
  const model::OwnLoss own = shifts.own_loss(data.example);
  EXPECT_EQ(own.loss.dim(), 0);
  EXPECT_EQ(own.outputs_BO.sizes(), (std::vector<int64_t>{2, 3, 64}));
  data.example = {.tensors = {tokens_BT, at::ones_like(tokens_BT), tokens_BT}};
  PythonModel tuples(python_args("keyword_nets.py", "Tuples"), data);
  EXPECT_EQ(tuples.num_unused_targets(), 0);
  EXPECT_FALSE(tuples.own_loss(data.example).outputs_BO.defined());
}

TEST(PythonModel, TellsWhatCannotBeBuilt) {
  const auto built = [](const PythonArgs& args) {
    return fault_of([&] { PythonModel net(args, inputs()); });
  };
  EXPECT_THAT(built(python_args("nets.py", "Bad", R"({"fault": "dtype"})")),
              AllOf(StartsWith("78 "), HasSubstr("nets.py: parameter first.weight is Double")));
  EXPECT_THAT(built(python_args("nets.py", "Plane")),
              AllOf(StartsWith("78 "),
                    HasSubstr("has no 'Plane', which 'model.name' names; it has Plain")));
  EXPECT_THAT(built(python_args("nets.py", "Bad", R"({"widht": 3})")),
              AllOf(StartsWith("78 "), HasSubstr("nets.py: Bad(widht=3), as 'model.args' says: ")));
  EXPECT_THAT(
      built(python_args("none.py", "Net")),
      AllOf(StartsWith("78 "), HasSubstr("none.py: no such file, which 'model.path' names")));
  EXPECT_THAT(
      built(python_args("sets.py", "Points")),
      AllOf(StartsWith("78 "), HasSubstr("Points(...) returns Points, not a torch.nn.Module")));
  PythonArgs other = python_args("nets.py", "Plain");
  other.python = "/nowhere/python";
  EXPECT_THAT(built(other),
              AllOf(StartsWith("78 "), HasSubstr("'/nowhere/python' cannot be started")));
  const tests::TemporaryFolder folder;
  const std::string broken = folder.path() / "broken.py";
  std::ofstream(broken) << "class Net\n    pass\n";
  other = python_args("nets.py", "Net");
  other.path = broken;
  EXPECT_THAT(built(other), AllOf(StartsWith("78 "), HasSubstr("broken.py:1: SyntaxError")));
}

/// One step of the network with this fault.
std::string trained(const std::string& fault) {
  return fault_of([&] {
    PythonModel net(python_args("nets.py", "Bad", R"({"fault": ")" + fault + R"("})"), inputs());
    const optim::FlatParams flat(net.params(), {{0, 2, 5}, {1, 3, 4, 6}}, at::kCPU);
    const at::Tensor loss = net.forward(at::ones({5, 4})).sum();
    try {
      loss.backward();
    } catch (const std::exception&) {
      net.after_backward();
      throw;
    }
    net.after_backward();
    flat.require_views();
  });
}

TEST(PythonModel, TellsWhatItsCodeDoesWrong) {
  EXPECT_EQ(trained(""), "nothing");
  EXPECT_THAT(trained("raises"),
              AllOf(StartsWith("78 "), HasSubstr("ValueError: this forward fails\n"),
                    HasSubstr("nets.py\", line ")));
  EXPECT_THAT(trained("exits"), AllOf(StartsWith("78 "), HasSubstr("SystemExit: 3")));
  EXPECT_THAT(trained("zero_grad"), AllOf(StartsWith("78 "), HasSubstr("replaced the memory of ")));
  EXPECT_THAT(
      trained("assigns"),
      AllOf(StartsWith("78 "), HasSubstr("put another tensor in the place of first.weight")));
  EXPECT_THAT(trained("no_tensor"),
              AllOf(StartsWith("78 "), HasSubstr("Bad.forward returns int, not a tensor")));
  EXPECT_THAT(trained("backward"),
              AllOf(StartsWith("78 "), HasSubstr("RuntimeError: this backward fails")));
  EXPECT_EQ(trained(""), "nothing");  // nothing of that is left in the interpreter
}

}  // namespace python_model_test
}  // namespace lockstep::python
