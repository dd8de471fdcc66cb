#include "model/network.h"

#include <cmath>
#include <map>
#include <set>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "model/model.h"
#include "model/networks/model_table.h"
#include "model/networks/small_networks.h"
#include "support/network_from_text.h"

namespace lockstep::model {
namespace network_test {

using tests::network;
using Tensors = std::map<std::string, at::Tensor>;

struct Case {
  const char* title;
  ModelOptions options;
  std::vector<int64_t> input_shape;
  int64_t num_classes;
  at::ScalarType input_dtype = at::kFloat;

  std::unique_ptr<Model> make() const {
    return options.make({input_shape, num_classes, 17, input_dtype});
  }
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"digits_net", digits_net(), {1, 8, 8}, 10},
      {"mlp_gelu", mlp({.layers = {6, 5, 4, 3}}), {2, 3}, 3},
      {"mlp_relu", mlp({.layers = {6, 5, 3}, .activation = "relu"}), {6}, 3},
      {"mlp_tanh", mlp({.layers = {6, 5, 3}, .activation = "tanh"}), {6}, 3},
      {"one_layer", mlp({.layers = {6, 3}}), {6}, 3},
      {"cnn", cnn({.channels = {3, 4, 5}, .hidden = 6}), {2, 5, 7}, 3},
      {"cnn_with_batch_norm",
       cnn({.channels = {3, 4}, .hidden = 6, .batch_norm = true}),
       {2, 5, 7},
       3},
      {"mnist_net", network("{type: mnist_net}"), {1, 28, 28}, 10},
      {"mnist_net_channels_last", network("{type: mnist_net}"), {28, 28, 1}, 10},
      {"lenet", network("{type: lenet}"), {3, 32, 32}, 4},
      {"lenet_with_border", network("{type: lenet}"), {1, 28, 28}, 4},
      {"vgg11", network("{type: vgg11, hidden: 8}"), {3, 224, 224}, 4},
      {"vgg11_small", network("{type: vgg11, hidden: 8}"), {1, 40, 67}, 4},
      {"vgg16_large", network("{type: vgg16, hidden: 8}"), {1, 32, 290}, 4},
      {"mobilenet_v1", network("{type: mobilenet_v1, width_multiplier: 0.1}"), {3, 32, 32}, 4},
      {"resnet18", network("{type: resnet18}"), {3, 33, 35}, 4},
      {"resnet50", network("{type: resnet50, stem: cifar}"), {1, 9, 8}, 4},
      {"vit",
       network("{type: vit, patch_size: 4, num_layers: 2, num_heads: 2, hidden_dim: 6, mlp_dim: 8, "
               "dropout: 0.1}"),
       {1, 12, 8},
       4},
      {"gpt",
       network("{type: gpt, layers: 2, heads: 3, width: 12, dropout: 0.1}"),
       {6},
       11,
       at::kLong},
      {"gpt_without_biases",
       network("{type: gpt, layers: 1, heads: 1, width: 8, bias: false}"),
       {6},
       11,
       at::kLong}};
  return all;
}

Tensors tensors_of(const Model& net) {
  Tensors all;
  for (const Param& param : net.params()) all[param.name] = param.tensor;
  for (const Buffer& buffer : net.buffers()) all[buffer.name] = buffer.tensor;
  return all;
}

/// No tensor is what it was at the start, and no signal fades on its way (weights of a variance of
/// 2 / inputs), so that a wrong layer shows in the outputs. The same numbers in every process.
void stir(const Model& net) {
  const at::NoGradGuard no_grad;
  at::manual_seed(20);
  for (const auto& [name, tensor] : tensors_of(net)) {
    if (tensor.dim() >= 2)
      at::Tensor(tensor).normal_(0, std::sqrt(2.0 / static_cast<double>(tensor[0].numel())));
    else if (tensor.is_floating_point())
      at::Tensor(tensor).add_(at::rand_like(tensor) * 0.1);
  }
}

at::Tensor attended(const NetworkLayer& layer, const at::Tensor& x) {
  const int64_t batch = x.size(0), tokens = x.size(1), width = layer.num_heads * layer.head_width;
  EXPECT_EQ(x.size(2), 3 * width);
  const at::Tensor parts = x.view({batch, tokens, 3, layer.num_heads, layer.head_width});
  const auto part = [&](int64_t i) { return parts.select(2, i).transpose(1, 2); };
  at::Tensor scores =
      part(0).matmul(part(1).transpose(2, 3)) / std::sqrt(static_cast<double>(layer.head_width));
  if (layer.is_causal)
    scores = scores.masked_fill(at::ones({tokens, tokens}).triu(1).to(at::kBool), -INFINITY);
  return at::softmax(scores, -1).matmul(part(2)).transpose(1, 2).reshape({batch, tokens, width});
}

/// Means of the parts of one dimension, each of which begins and ends as PyTorch documents it.
at::Tensor means(const at::Tensor& x, int64_t dim, int64_t num) {
  std::vector<at::Tensor> parts;
  for (int64_t i = 0; i < num; ++i) {
    const int64_t begin = i * x.size(dim) / num,
                  end = static_cast<int64_t>(std::ceil(static_cast<double>((i + 1) * x.size(dim)) /
                                                       static_cast<double>(num)));
    parts.push_back(x.slice(dim, begin, end).mean({dim}, /*keepdim=*/true));
  }
  return at::cat(parts, dim);
}

/// One layer of a description, by its own words. `y`: the second input of a sum.
at::Tensor computed(const NetworkLayer& layer, const at::Tensor& x, const at::Tensor& y,
                    const Tensors& tensors) {
  const std::vector<std::string> names = tensor_names(layer);
  const auto tensor = [&](size_t i) { return tensors.at(names.at(i)); };
  const auto by_channel = [&](size_t i) { return tensor(i).view({1, -1, 1, 1}); };
  const int64_t k = layer.kernel_extent, s = layer.stride, p = layer.padding;
  switch (layer.kind) {
    case LayerKind::kFlatten:
      return x.flatten(1);
    case LayerKind::kLinear:
      return layer.has_bias ? x.matmul(tensor(0).t()) + tensor(1) : x.matmul(tensor(0).t());
    case LayerKind::kConv2d:
      EXPECT_EQ(tensor(0).sizes().slice(2), (at::IntArrayRef{k, k}));
      return at::conv2d(x, tensor(0), layer.has_bias ? tensor(1) : at::Tensor(), s, p, 1,
                        layer.groups);
    case LayerKind::kBatchNorm:
      return (x - by_channel(2)) / at::sqrt(by_channel(3) + layer.epsilon) * by_channel(0) +
             by_channel(1);
    case LayerKind::kMaxPool2d:
      return at::constant_pad_nd(x, {p, p, p, p}, -INFINITY)
          .unfold(2, k, s)
          .unfold(3, k, s)
          .amax({4, 5});
    case LayerKind::kAdaptiveAveragePool2d:
      EXPECT_EQ(x.sizes().slice(2), at::IntArrayRef(layer.image));
      return means(means(x, 2, k), 3, k);
    case LayerKind::kGlobalAveragePool:
      return x.mean({2, 3}, /*keepdim=*/true);
    case LayerKind::kChannelsFirst:
      return x.permute({0, 3, 1, 2});
    case LayerKind::kRelu:
      return x.clamp_min(0);
    case LayerKind::kGelu:
      return x * 0.5 * (1 + at::erf(x / std::sqrt(2.0)));
    case LayerKind::kTanh:
      return at::tanh(x);
    case LayerKind::kAdd:
      return x + y;
    case LayerKind::kLayerNorm: {
      const at::Tensor variance = x.var({-1}, /*unbiased=*/false, /*keepdim=*/true);
      const at::Tensor scaled =
          (x - x.mean({-1}, true)) / at::sqrt(variance + layer.epsilon) * tensor(0);
      return layer.has_bias ? scaled + tensor(1) : scaled;
    }
    case LayerKind::kAttention:
      return attended(layer, x);
    case LayerKind::kEmbedding:
      return tensor(0).index({x});
    case LayerKind::kPatches:
      EXPECT_EQ(x.sizes().slice(2), at::IntArrayRef(layer.image));
      return x.permute({0, 2, 3, 1}).flatten(1, 2);
    case LayerKind::kPrepend:
      return at::cat({tensor(0).repeat({x.size(0), 1, 1}), x}, 1);
    case LayerKind::kAddPositions:
      return x + tensor(0).view({-1, x.size(2)}).slice(0, 0, x.size(1));
    case LayerKind::kFirstToken:
      return x.slice(1, 0, 1).flatten(1);
    case LayerKind::kOther:
      break;
  }
  ADD_FAILURE() << "an own network has no other layers";
  return x;
}

at::Tensor computed(const Network& layers, const at::Tensor& inputs, const Tensors& tensors) {
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i < layers.size(); ++i) {
    std::vector<at::Tensor> taken;
    for (const int64_t from : inputs_of(layers, i))
      taken.push_back(from == kNetworkInput ? inputs : outputs.at(static_cast<size_t>(from)));
    EXPECT_EQ(taken.size(), layers[i].kind == LayerKind::kAdd ? 2U : 1U);
    outputs.push_back(computed(layers[i], taken.front(), taken.back(), tensors));
  }
  return outputs.back();
}

at::Tensor inputs_for(const Case& c) {
  std::vector<int64_t> shape = c.input_shape;
  shape.insert(shape.begin(), 4);
  if (c.input_dtype == at::kLong) return at::randint(c.num_classes, shape, at::kLong);
  std::vector<int64_t> by_sample(shape.size(), 1);
  by_sample[0] = 4;
  return at::randn(shape) * at::tensor({0.5F, 1.0F, 2.0F, 4.0F}).view(by_sample);
}

TEST(Network, ComputesWhatTheModelComputesInEvaluation) {
  const at::NoGradGuard no_grad;
  for (const Case& c : cases()) {
    const auto net = c.make();
    stir(*net);
    net->set_training(false);
    const at::Tensor inputs = inputs_for(c);
    const Network layers = net->network();
    EXPECT_EQ(takes_tokens(layers), c.input_dtype == at::kLong) << c.title;
    const at::Tensor x = computed(layers, inputs, tensors_of(*net));
    const at::Tensor outputs = net->forward(inputs), largest = outputs.abs().max();
    const at::Tensor spread = (std::get<0>(outputs.max(0)) - std::get<0>(outputs.min(0))).max();
    EXPECT_GT((spread / largest).item<double>(), 0.2) << c.title << ": says little of its layers";
    EXPECT_LT(((outputs - x).abs().max() / largest).item<double>(), 1e-5) << c.title;
  }
}

TEST(Network, NamesEveryTensorOfTheModelButTheCountOfBatches) {
  for (const Case& c : cases()) {
    const auto net = c.make();
    std::set<std::string> named;
    for (const NetworkLayer& layer : net->network())
      for (const std::string& name : tensor_names(layer))
        EXPECT_TRUE(named.insert(name).second || name == "transformer.wte.weight")
            << c.title << ": two layers have " << name;
    for (const auto& [name, tensor] : tensors_of(*net))
      EXPECT_NE(named.erase(name) == 1U, name.find(".num_batches") != std::string::npos)
          << c.title << ": " << name;
    EXPECT_TRUE(named.empty()) << c.title;
  }
}

/// y = relu(x), then (y + tanh(y)) + relu(y + tanh(y)): no layer may write over what others take.
TEST(Sequence, KeepsWhatSeveralLayersTake) {
  Sequence net;
  net.add({.kind = LayerKind::kRelu});
  const int64_t y = net.end();
  net.add({.kind = LayerKind::kTanh});
  net.add_sum(y, net.end());
  const int64_t sum = net.end();
  net.add({.kind = LayerKind::kRelu});
  net.add_sum(sum, net.end());
  const at::Tensor x = at::randn({3, 4}), kept = x.clone(), of_y = x.relu() + x.relu().tanh();
  EXPECT_TRUE(at::allclose(net.forward(x), 2 * of_y));
  EXPECT_TRUE(at::equal(x, kept)) << "the caller's";
  EXPECT_TRUE(at::allclose(computed(net.network(), x, {}), 2 * of_y));
}

}  // namespace network_test
}  // namespace lockstep::model
