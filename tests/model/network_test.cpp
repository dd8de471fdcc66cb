#include "model/network.h"

#include <map>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "base/error.h"
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
      {"mobilenet_v1", network("{type: mobilenet_v1, width_multiplier: 0.1}"), {3, 32, 32}, 4}};
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

/// One layer of a description, by its own words.
at::Tensor computed(const NetworkLayer& layer, const at::Tensor& x, const Tensors& tensors) {
  const auto part = [&](const char* name) { return tensors.at(layer.name + "." + name); };
  const auto by_channel = [&](const char* name) { return part(name).view({1, -1, 1, 1}); };
  const int64_t k = layer.kernel_extent, s = layer.stride;
  switch (layer.kind) {
    case LayerKind::kFlatten:
      return x.flatten(1);
    case LayerKind::kLinear:
      return x.matmul(part("weight").t()) + part("bias");
    case LayerKind::kConv2d:
      EXPECT_EQ(part("weight").sizes().slice(2), (at::IntArrayRef{k, k}));
      return at::conv2d(x, part("weight"), layer.has_bias ? part("bias") : at::Tensor(), s,
                        layer.padding, 1, layer.groups);
    case LayerKind::kBatchNorm:
      return (x - by_channel("moving_mean")) /
                 at::sqrt(by_channel("moving_variance") + layer.epsilon) * by_channel("gamma") +
             by_channel("beta");
    case LayerKind::kMaxPool2d:
      return x.unfold(2, k, s).unfold(3, k, s).amax({4, 5});
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
    case LayerKind::kOther:
      break;
  }
  ADD_FAILURE() << "an own network has no other layers";
  return x;
}

TEST(Network, ComputesWhatTheModelComputesInEvaluation) {
  for (const Case& c : cases()) {
    const auto net = c.options.make({c.input_shape, c.num_classes, 17});
    stir(*net);
    net->set_training(false);
    std::vector<int64_t> shape = c.input_shape;
    shape.insert(shape.begin(), 4);
    std::vector<int64_t> by_sample(shape.size(), 1);
    by_sample[0] = 4;
    const at::Tensor inputs =
        at::randn(shape) * at::tensor({0.5F, 1.0F, 2.0F, 4.0F}).view(by_sample);
    at::Tensor x = inputs;
    for (const NetworkLayer& layer : net->network()) x = computed(layer, x, tensors_of(*net));
    const at::Tensor outputs = net->forward(inputs), largest = outputs.abs().max();
    const at::Tensor spread = (std::get<0>(outputs.max(0)) - std::get<0>(outputs.min(0))).max();
    EXPECT_GT((spread / largest).item<double>(), 0.2) << c.title << ": says little of its layers";
    EXPECT_LT(((outputs - x).abs().max() / largest).item<double>(), 1e-5) << c.title;
  }
}

TEST(Network, NamesEveryTensorOfTheModelButTheCountOfBatches) {
  for (const Case& c : cases()) {
    const auto net = c.options.make({c.input_shape, c.num_classes, 17});
    Tensors left = tensors_of(*net);
    for (const NetworkLayer& layer : net->network())
      for (const std::string& name : tensor_names(layer))
        EXPECT_EQ(left.erase(name), 1U) << c.title << ": " << name;
    for (const auto& [name, tensor] : left)
      EXPECT_TRUE(name.ends_with(".num_batches")) << c.title << ": " << name;
  }
}

TEST(Network, OfVggIsThereForImagesOf224x224Alone) {
  const ModelOptions vgg = network("{type: vgg11, hidden: 4}");
  EXPECT_FALSE(vgg.make({{3, 224, 224}, 10, 17})->network().empty());
  try {
    (void)vgg.make({{3, 32, 32}, 10, 17})->network();
    FAIL() << "32x32 is pooled otherwise";
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kUsage);
    EXPECT_NE(std::string(fault.what()).find("vgg11 has images of 32x32"), std::string::npos)
        << fault.what();
  }
}

}  // namespace network_test
}  // namespace lockstep::model
