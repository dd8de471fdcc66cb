// restore() before the variables exist.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/torch_objects.h"
#include "model/lazy_layers.h"
#include "tests/checkpoint/save_fixture.h"

namespace lockstep::checkpoint {
namespace delayed_restore_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using tests::TemporaryFolder;

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t num_hidden = 6) {
    conv = register_module("conv", model::LazyConv2d(model::LazyConv2dOptions{.num_outputs = 2}));
    fc = register_module("fc", model::LazyLinear(num_hidden));
  }
  at::Tensor forward(const at::Tensor& images) {
    return fc->forward(conv->forward(images).flatten(1).relu());
  }
  model::LazyConv2d conv{nullptr};
  model::LazyLinear fc{nullptr};
};
TORCH_MODULE(Net);

at::Tensor images() { return (at::arange(2 * 1 * 5 * 5, at::kFloat).reshape({2, 1, 5, 5})).cos(); }

/// A save of a Net that has been called; its output.
at::Tensor save_net(const std::string& prefix) {
  torch::manual_seed(5);
  Net net;
  at::Tensor output = net->forward(images()).detach();
  Checkpoint({{"model", net}}).save(prefix);
  return output;
}

TEST(DelayedRestore, LazyLayersTakeTheirValuesAtTheFirstForward) {
  const TemporaryFolder folder;
  const at::Tensor expected = save_net(folder.prefix());
  torch::manual_seed(6);
  Net net;
  Checkpoint checkpoint({{"model", net}});
  const RestoreStatus status = checkpoint.restore(folder.prefix() + "-1");
  EXPECT_THAT(status.pending(), UnorderedElementsAre("model/conv/weight", "model/conv/bias",
                                                     "model/fc/weight", "model/fc/bias"));
  EXPECT_THAT(status.missing(), IsEmpty());
  EXPECT_NO_THROW(status.assert_existing_objects_matched());  // nothing exists yet
  EXPECT_THROW(status.assert_consumed(), Error);

  EXPECT_TRUE(at::equal(net->forward(images()), expected));
  status.assert_consumed();
  EXPECT_THAT(status.pending(), IsEmpty());
  EXPECT_TRUE(net->fc->named_parameters()["weight"].requires_grad());
}

TEST(DelayedRestore, StrictLoadingRefusesWhatDoesNotExistYet) {
  const TemporaryFolder folder;
  const at::Tensor expected = save_net(folder.prefix());
  Net net;
  Checkpoint checkpoint({{"model", net}});
  try {
    checkpoint.load_weights_now(folder.prefix() + "-1");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("'model/conv/weight'"), HasSubstr("call the model once")));
  }
  (void)net->forward(images());
  checkpoint.load_weights_now(folder.prefix() + "-1");
  EXPECT_TRUE(at::equal(net->forward(images()), expected));
}

TEST(DelayedRestore, TheFilesMayBeGoneByThen) {
  const TemporaryFolder folder;
  const at::Tensor expected = save_net(folder.prefix());
  Net net;
  Checkpoint checkpoint({{"model", net}});
  const RestoreStatus status = checkpoint.restore(folder.prefix() + "-1");
  for (const auto& name : files::list(folder.path())) files::remove_file(folder.path() / name);
  EXPECT_TRUE(at::equal(net->forward(images()), expected));
  status.assert_consumed();
}

TEST(DelayedRestore, AShapeThatDoesNotFitIsSaidAtCreation) {
  const TemporaryFolder folder;
  save_net(folder.prefix());
  Net net(7);
  Checkpoint checkpoint({{"model", net}});
  checkpoint.restore(folder.prefix() + "-1").expect_partial();
  for (int attempt = 0; attempt < 2; ++attempt) try {
      (void)net->forward(images());
      FAIL();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("'model/fc/weight' is saved as float32 [6, 18]"),
                        HasSubstr("the variable is float32 [7, 18]"), HasSubstr("model.ckpt-1")));
    }
}

TEST(DelayedRestore, ObjectsAndModulesMayComeLater) {
  const TemporaryFolder folder;
  at::Tensor scale = at::full({2}, 3.0);
  torch::nn::Sequential two(torch::nn::Linear(2, 2), torch::nn::Linear(2, 1));
  Checkpoint({{"model", two}, {"scale", scale}}).save(folder.prefix());

  torch::nn::Sequential grows(torch::nn::Linear(2, 2));
  Checkpoint checkpoint({{"model", grows}});
  const RestoreStatus status = checkpoint.restore(folder.prefix() + "-1");
  EXPECT_THAT(status.pending(), UnorderedElementsAre("model/1/weight", "model/1/bias", "scale"));
  at::Tensor late = at::zeros({2});
  checkpoint.add("scale", late);
  EXPECT_EQ(late.sum().item<double>(), 6);
  late.zero_();
  grows->push_back(torch::nn::Linear(2, 1));
  checkpoint.look_for_new();
  EXPECT_TRUE(
      at::equal(grows->named_parameters()["1.weight"], two->named_parameters()["1.weight"]));
  EXPECT_EQ(late.sum().item<double>(), 0) << "a value is restored once";
  status.assert_consumed();
}

/// Keeps one slot a parameter from its first step on, and says so.
class OwnMomentum : public DeferredVariables {
 public:
  explicit OwnMomentum(at::Tensor param) : param_(std::move(param)) {}
  StateList state() const {
    return slot_.defined() ? StateList{{.key = "slot", .tensor = slot_}} : StateList();
  }
  std::vector<std::string> names_to_come() const override {
    return slot_.defined() ? std::vector<std::string>() : std::vector<std::string>{"slot"};
  }
  void step() {
    if (!slot_.defined()) {
      const at::Tensor slot = at::zeros_like(param_);
      announce("slot", slot);
      slot_ = slot;
    }
    slot_.mul_(0.5).add_(1);
    param_.sub_(slot_);
  }

 private:
  at::Tensor param_, slot_;
};

TEST(DelayedRestore, AnOptimizerOfOnesOwnTakesItsSlotsAtItsFirstStep) {
  const TemporaryFolder folder;
  at::Tensor param = at::zeros({3}), other = at::ones({3});
  OwnMomentum first(param), second(other);
  first.step();
  Checkpoint({{"param", param}, {"optimizer", first}}).save(folder.prefix());
  Checkpoint checkpoint({{"param", other}, {"optimizer", second}});
  const RestoreStatus status = checkpoint.restore(folder.prefix() + "-1");
  EXPECT_THAT(status.pending(), UnorderedElementsAre("optimizer/slot"));
  first.step();
  second.step();
  EXPECT_TRUE(at::equal(param, other)) << other;
  status.assert_consumed();
}

TEST(DelayedRestore, TheNextRestoreReplacesTheOneBefore) {
  const TemporaryFolder folder;
  Net net;
  Checkpoint source({{"model", net}});
  (void)net->forward(images());
  source.save(folder.prefix());
  {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& param : net->parameters()) param.fill_(2);
  }
  source.save(folder.prefix());
  Net late;
  Checkpoint checkpoint({{"model", late}});
  const RestoreStatus first = checkpoint.restore(folder.prefix() + "-1");
  const RestoreStatus second = checkpoint.restore(folder.prefix() + "-2");
  (void)late->forward(images());
  second.assert_consumed();
  EXPECT_EQ(first.pending().size(), 4U) << "it writes nothing any more";
  EXPECT_EQ(late->fc->named_parameters()["bias"].sum().item<double>(), 12);
}

TEST(DelayedRestore, ACheckpointThatIsGoneTouchesNothing) {
  const TemporaryFolder folder;
  const at::Tensor saved = save_net(folder.prefix());
  Net net;
  { (void)Checkpoint({{"model", net}}).restore(folder.prefix() + "-1").expect_partial(); }
  torch::manual_seed(9);
  EXPECT_FALSE(at::equal(net->forward(images()), saved));
}

TEST(LazyLayers, AreShapedAndDrawnAsThoseOfLibTorch) {
  model::LazyLinear linear(4, /*with_bias=*/false);
  EXPECT_FALSE(linear->is_built());
  EXPECT_TRUE(linear->parameters().empty());
  EXPECT_EQ(linear->forward(at::ones({2, 3, 9})).sizes(), at::IntArrayRef({2, 3, 4}));
  EXPECT_EQ(linear->named_parameters()["weight"].sizes(), at::IntArrayRef({4, 9}));
  EXPECT_LE(linear->named_parameters()["weight"].abs().max().item<double>(), 1.0 / 3);
  EXPECT_EQ(linear->parameters().size(), 1U);
  EXPECT_THROW(model::LazyLinear(2)->forward(at::scalar_tensor(1.0)), Error);
  EXPECT_THROW(model::LazyConv2d(model::LazyConv2dOptions())->forward(at::ones({2, 2})), Error);
}

}  // namespace delayed_restore_test
}  // namespace lockstep::checkpoint
