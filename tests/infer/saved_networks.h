#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "base/tensors/state_list.h"
#include "checkpoint/save/saver.h"
#include "dist/communicator.h"
#include "model/model.h"
#include "model/networks/model_table.h"
#include "model/networks/small_networks.h"
#include "recal/quantization/fake_quantizer.h"
#include "tests/support/network_from_text.h"

namespace lockstep::tests {

/// A network as a run file asks for it.
struct NetworkCase {
  std::string title;
  std::vector<std::string> settings;  ///< as a save holds them
  model::ModelOptions options;
  std::vector<int64_t> input_shape;
  int64_t num_classes = 10;
  at::ScalarType input_dtype = at::kFloat;
  bool redraws = false;  ///< weights anew: initial ones are 0, or too small for attention to show
};

/// Adds the type `branches`: what no built-in network has, but yours may. Convolutions in groups
/// and with a stride of 3, an input of the whole network that is used again, pooling of parts that
/// overlap, tokens of another network's linear layers.
inline void add_branches_type() {
  const auto make = [](const model::ModelInputs& data) {
    auto net = std::make_unique<model::Sequence>();
    const int64_t channels = data.input_shape[0];
    net->add<model::Conv2d>("a", channels, channels,
                            model::Conv2dOptions{.padding = 1, .groups = channels}, data.seed);
    net->add_sum(net->end(), 0);
    const int64_t sum = net->end();
    net->add({.kind = model::LayerKind::kRelu});
    net->add_sum(sum, net->end());
    net->add({.kind = model::LayerKind::kMaxPool2d, .kernel_extent = 3, .padding = 1});
    net->add<model::Conv2d>("b", channels, 6, model::Conv2dOptions{.stride = 3, .groups = 2},
                            data.seed);
    const int64_t rows = (data.input_shape[1] - 3) / 3 + 1,
                  columns = (data.input_shape[2] - 3) / 3 + 1;
    net->add({.kind = model::LayerKind::kAdaptiveAveragePool2d,
              .kernel_extent = 4,
              .image = {rows, columns}});
    net->add({.kind = model::LayerKind::kPatches, .image = {4, 4}});
    net->add<model::Linear>("c", 6, 5, data.seed);
    net->add({.kind = model::LayerKind::kTanh});
    net->add({.kind = model::LayerKind::kFlatten});
    net->add<model::Linear>("d", 80, data.num_classes, data.seed);
    return net;
  };
  if (model::model_types().find("branches") == nullptr)
    model::model_types().add({"branches", [make](ConfigReader*) { return make; }});
}

/// All types of networks and what they can be made of.
inline std::vector<NetworkCase> network_cases() {
  add_branches_type();
  return {
      {"digits_net",
       {"data.train.type=digits", "model.type=digits_net"},
       model::digits_net(),
       {1, 8, 8}},
      {"by_default", {"run.name=x"}, model::digits_net(), {1, 8, 8}},
      {"mlp_gelu",
       {"model.layers[0]=6", "model.layers[1]=5", "model.layers[2]=3", "model.type=mlp"},
       model::mlp({.layers = {6, 5, 3}}),
       {2, 3},
       3},
      {"mlp_tanh",
       {"model.activation=tanh", "model.layers[0]=6", "model.layers[1]=5", "model.layers[2]=3",
        "model.type=mlp"},
       model::mlp({.layers = {6, 5, 3}, .activation = "tanh"}),
       {6},
       3},
      {"mlp_deep",  // item 10 stands before item 2 where lines are sorted
       {"model.activation=relu", "model.layers[0]=4", "model.layers[10]=3", "model.layers[1]=5",
        "model.layers[2]=6", "model.layers[3]=7", "model.layers[4]=8", "model.layers[5]=9",
        "model.layers[6]=8", "model.layers[7]=7", "model.layers[8]=6", "model.layers[9]=5",
        "model.type=mlp"},
       model::mlp({.layers = {4, 5, 6, 7, 8, 9, 8, 7, 6, 5, 3}, .activation = "relu"}),
       {4},
       3},
      {"cnn",
       {"model.channels[0]=4", "model.channels[1]=5", "model.channels[2]=6", "model.hidden=7",
        "model.type=cnn"},
       model::cnn({.channels = {4, 5, 6}, .hidden = 7}),
       {2, 7, 9},
       4},
      {"cnn_batch_norm",
       {"model.batch_norm=true", "model.channels[0]=4", "model.channels[1]=5", "model.hidden=7",
        "model.type=cnn"},
       model::cnn({.channels = {4, 5}, .hidden = 7, .batch_norm = true}),
       {2, 7, 9},
       4},
      {"mnist_net", {"model.type=mnist_net"}, network("{type: mnist_net}"), {28, 28, 1}},
      {"lenet", {"model.type=lenet"}, network("{type: lenet}"), {3, 32, 32}},
      {"mobilenet_v1",
       {"model.type=mobilenet_v1", "model.width_multiplier=0.1"},
       network("{type: mobilenet_v1, width_multiplier: 0.1}"),
       {3, 32, 32}},
      {"branches", {"model.type=branches"}, network("{type: branches}"), {2, 17, 20}, 3},
      {"resnet18",
       {"model.stem=cifar", "model.type=resnet18"},
       network("{type: resnet18, stem: cifar}"),
       {3, 11, 8},
       7,
       at::kFloat,
       true},
      {"resnet50",
       {"model.type=resnet50"},
       network("{type: resnet50}"),
       {1, 45, 33},
       7,
       at::kFloat,
       true},
      {"vgg11",
       {"model.hidden=8", "model.type=vgg11"},
       network("{type: vgg11, hidden: 8}"),
       {1, 40, 67},
       7,
       at::kFloat,
       true},
      {"vgg16",
       {"model.hidden=8", "model.type=vgg16"},
       network("{type: vgg16, hidden: 8}"),
       {1, 32, 290},
       7,
       at::kFloat,
       true},
      {"vit",
       {"model.hidden_dim=12", "model.mlp_dim=20", "model.num_heads=3", "model.num_layers=2",
        "model.patch_size=4", "model.type=vit"},
       network("{type: vit, hidden_dim: 12, mlp_dim: 20, num_heads: 3, num_layers: 2, patch_size: "
               "4}"),
       {1, 8, 12},
       4,
       at::kFloat,
       true},
      {"gpt",
       {"model.heads=2", "model.layers=2", "model.type=gpt", "model.width=12"},
       network("{type: gpt, layers: 2, heads: 2, width: 12}"),
       {9},
       11,
       at::kLong,
       true},
      {"gpt_without_biases",
       {"model.bias=false", "model.heads=1", "model.layers=1", "model.type=gpt", "model.width=8"},
       network("{type: gpt, layers: 1, heads: 1, width: 8, bias: false}"),
       {6},
       11,
       at::kLong,
       true},
  };
}

/// Layers of a network that int8 rounds.
struct QuantizedCase {
  std::string title;
  size_t network = 0;           ///< in network_cases()
  std::vector<int64_t> layers;  ///< empty: all
  bool per_output = true;
  bool observes_inputs = true;  ///< else inputs pass as they are
};

inline std::vector<QuantizedCase> quantized_cases() {
  return {{"digits_net_quantized", 0, {0, 1, 2, 3}},
          {"digits_net_per_tensor", 0, {0, 1, 2, 3}, false},
          {"mlp_quantized", 2, {0, 1}},
          {"cnn_partly_quantized", 5, {1, 3}, false},
          {"cnn_batch_norm_quantized", 6, {0, 1, 2, 3}},
          {"mobilenet_v1_quantized", 9, {}},
          {"branches_quantized", 10, {}},
          {"resnet18_quantized", 11, {}},
          {"resnet50_quantized", 12, {}},
          {"vgg11_quantized", 13, {}, false},
          {"vit_quantized", 15, {}},
          {"gpt_quantized", 16, {}},
          {"digits_net_weights_only", 0, {0, 1, 2, 3}, true, false}};
}

/// A network of which no tensor is as at the start, and the state that a run would save of it. The
/// same numbers in every process, so that what one run shows the next one shows too.
///
/// Weights are scaled so that a layer hands on the variance that it gets (He et al., arXiv
/// 1502.01852): as a new network has them, signals fade and ReLUs die, logits are little more than
/// biases, and a wrong layer would hardly show. See liveliness().
struct TrainedNetwork {
  explicit TrainedNetwork(const NetworkCase& c)
      : net(c.options.make({c.input_shape, c.num_classes, 17, c.input_dtype})),
        input_shape(c.input_shape),
        settings(fmt::format("{}", fmt::join(c.settings, "\n"))),
        shape(fmt::format("[{}]", fmt::join(c.input_shape, ", "))),
        input_dtype(c.input_dtype),
        num_classes(c.num_classes) {
    const at::NoGradGuard no_grad;
    at::manual_seed(kSeed);
    for (const Param& param : net->params()) {
      const auto fan_in = static_cast<double>(param.tensor[0].numel());
      if (c.redraws && param.tensor.dim() >= 2)
        param.tensor.normal_(0, std::sqrt(2 / fan_in));
      else if (param.prunable)
        param.tensor.mul_(kGain);
      param.tensor.add_(at::rand_like(param.tensor) * (0.1 * std::min(1.0, 30 / fan_in)));
      state.push_back({"model/" + slashed(param.name), param.tensor.detach()});
    }
    for (const model::Buffer& buffer : net->buffers()) {
      if (buffer.tensor.is_floating_point()) buffer.tensor.add_(at::rand_like(buffer.tensor));
      state.push_back({"model/" + slashed(buffer.name), buffer.tensor});
    }
    state.push_back({"_lockstep/step", view_of(&step)});
    state.push_back({"_lockstep/sampler/steps_per_epoch", view_of(&steps_per_epoch)});
    state.push_back({"_lockstep/settings", {}, &settings});
    state.push_back({"_lockstep/data/input_shape", {}, &shape});
    state.push_back({"_lockstep/data/num_classes", view_of(&num_classes)});
  }
  TrainedNetwork(const TrainedNetwork&) = delete;
  TrainedNetwork& operator=(const TrainedNetwork&) = delete;

  /// Quantizes like some steps of a !QuantizationModifier: from here on logits() rounds. Call it
  /// once.
  void quantize(const QuantizedCase& c) {
    quantizer.emplace(net->layers());
    net->set_layer_hook(&*quantizer);
    std::vector<int64_t> layers = c.layers;
    for (size_t i = 0; c.layers.empty() && i < net->layers().size(); ++i)
      layers.push_back(static_cast<int64_t>(i));
    quantizer->configure(layers, c.per_output, c.observes_inputs);
    net->set_training(false);
    dist::SelfCommunicator alone;
    for (int i = 0; i < 3; ++i) {  // inputs are observed where gradients are on
      (void)net->forward(inputs(16));
      quantizer->end_step(alone, true);
    }
    for (const StateEntry& entry : quantizer->state()) state.push_back(entry);
  }
  /// Logits of the same weights without rounding.
  at::Tensor plain_logits(const at::Tensor& inputs) {
    net->set_layer_hook(nullptr);
    const at::Tensor result = logits(inputs);
    if (quantizer) net->set_layer_hook(&*quantizer);
    return result;
  }

  void leave_out(const std::string& key) {
    std::erase_if(state, [&](const StateEntry& entry) { return entry.key == key; });
  }
  /// Returns the save's prefix.
  std::string save(const std::string& prefix) {
    dist::SelfCommunicator alone;
    return checkpoint::Saver({.prefix = prefix}, alone).save(state, step).prefix;
  }
  at::Tensor inputs(int64_t num_samples) const {
    std::vector<int64_t> extents = input_shape;
    extents.insert(extents.begin(), num_samples);
    if (input_dtype == at::kLong) return at::randint(num_classes, extents, at::kLong);
    std::vector<int64_t> by_sample(extents.size(), 1);
    by_sample[0] = num_samples;
    return at::randn(extents) *
           at::arange(1, num_samples + 1).remainder(4).add(0.5).view(by_sample);
  }
  /// Logits of the network itself in evaluation mode.
  at::Tensor logits(const at::Tensor& inputs) {
    const at::NoGradGuard no_grad;
    net->set_training(false);
    return net->forward(inputs);
  }

  /// Difference of logits between samples, as a share of the largest. If it is near 0, the logits
  /// do not depend on the layers.
  static double liveliness(const at::Tensor& logits_BC) {
    const at::Tensor spread_C = std::get<0>(logits_BC.max(0)) - std::get<0>(logits_BC.min(0));
    return (spread_C.max() / logits_BC.abs().max()).item<double>();
  }

  static constexpr uint64_t kSeed = 20;
  static constexpr double kGain = 2.45;  // uniform in ±1/sqrt(n) to a variance of 2/n

  std::unique_ptr<model::Model> net;
  std::vector<int64_t> input_shape;
  std::string settings, shape;
  at::ScalarType input_dtype;
  int64_t num_classes, step = 30, steps_per_epoch = 20;
  std::optional<recal::FakeQuantizer> quantizer;
  StateList state;
};

}  // namespace lockstep::tests
