#include "base/tensors/params.h"

#include <type_traits>

#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include "model/model.h"
#include "model/networks/model_table.h"
#include "model/networks/small_networks.h"

namespace lockstep::model {
namespace layer_hook_test {

/// Writes down what it is asked and gives the tensors back, scaled.
class Recorder final : public LayerHook {
 public:
  at::Tensor input(int64_t layer, const at::Tensor& input) override {
    calls.push_back("input " + std::to_string(layer));
    return input * input_factor;
  }
  at::Tensor weight(int64_t layer, const at::Tensor& weight) override {
    calls.push_back("weight " + std::to_string(layer));
    weights.push_back(weight);
    return weight * weight_factor;
  }

  std::vector<std::string> calls;
  std::vector<at::Tensor> weights;
  double input_factor = 1, weight_factor = 1;
};

static_assert(!std::is_copy_constructible_v<Model> && !std::is_move_constructible_v<Model>);

std::unique_ptr<Model> small_mlp() {
  return mlp({.layers = {4, 5, 2}, .activation = "tanh"}).make({{4}, 2, 1});
}

TEST(Layers, AreListedInTheOrderOfForward) {
  const auto net = digits_net().make({{1, 8, 8}, 10, 17});
  std::vector<std::string> names;
  for (const LayerInfo& layer : net->layers()) {
    names.push_back(layer.name);
    EXPECT_EQ(net->params()[static_cast<size_t>(layer.weight_param)].name, layer.name + ".weight");
    EXPECT_FALSE(layer.has_batch_norm);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"blocks.0.conv", "blocks.1.conv", "blocks.2.conv",
                                             "classifier"}));
  EXPECT_EQ(small_mlp()->layers().size(), 2);
}

TEST(LayerHook, IsAskedForInputThenWeightLayerByLayer) {
  const auto net = digits_net().make({{1, 8, 8}, 10, 17});
  Recorder hook;
  net->set_layer_hook(&hook);
  net->forward(at::rand({2, 1, 8, 8}));
  EXPECT_EQ(hook.calls, (std::vector<std::string>{"input 0", "weight 0", "input 1", "weight 1",
                                                  "input 2", "weight 2", "input 3", "weight 3"}));
  for (size_t l = 0; l < hook.weights.size(); ++l)
    EXPECT_TRUE(hook.weights[l].is_same(
        net->params()[static_cast<size_t>(net->layers()[l].weight_param)].tensor));
}

TEST(LayerHook, WhatItReturnsIsComputedWith) {
  const auto net = small_mlp();
  const at::Tensor inputs = at::rand({3, 4});
  const at::Tensor plain = net->forward(inputs);
  Recorder hook;
  net->set_layer_hook(&hook);
  EXPECT_TRUE(at::equal(net->forward(inputs), plain));

  hook.weight_factor = 0;  // only the last bias is left
  const at::Tensor bias = net->params().back().tensor;
  EXPECT_TRUE(at::equal(net->forward(inputs), bias.expand({3, 2})));
  hook.weight_factor = 1;
  hook.input_factor = 0;
  EXPECT_TRUE(at::equal(net->forward(inputs), bias.expand({3, 2})));
}

TEST(LayerHook, TakesPartInTheGradient) {
  const auto net = small_mlp();
  const at::Tensor inputs = at::rand({3, 4});
  at::Tensor& weight = net->params()[2].tensor;  // of the last layer: linear in it
  net->forward(inputs).sum().backward();
  const at::Tensor plain = weight.grad().clone();
  weight.mutable_grad() = at::zeros_like(weight);
  Recorder hook;
  hook.weight_factor = 2;
  net->set_layer_hook(&hook);
  net->params()[0].tensor.set_requires_grad(false);
  net->params()[0].tensor.div_(2);  // the hook doubles it again
  net->params()[0].tensor.set_requires_grad(true);
  net->forward(inputs).sum().backward();
  EXPECT_TRUE(at::equal(weight.grad(), plain * 2));
}

TEST(LayerHook, NullTakesItAwayAgain) {
  const auto net = small_mlp();
  const at::Tensor inputs = at::rand({3, 4});
  const at::Tensor plain = net->forward(inputs);
  Recorder hook;
  hook.weight_factor = 3;
  net->set_layer_hook(&hook);
  EXPECT_FALSE(at::equal(net->forward(inputs), plain));
  net->set_layer_hook(nullptr);
  EXPECT_TRUE(at::equal(net->forward(inputs), plain));
  EXPECT_EQ(hook.calls.size(), 4);
}

}  // namespace layer_hook_test
}  // namespace lockstep::model
