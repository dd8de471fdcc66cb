#include "model/model.h"

#include <array>

#include <ATen/TensorOperators.h>
#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tanh.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace lockstep::model {

std::string kind_name(LayerKind kind) {
  constexpr std::array kNames = {"flatten",
                                 "linear",
                                 "conv2d",
                                 "batch_norm",
                                 "max_pool2d",
                                 "adaptive_average_pool2d",
                                 "global_average_pool",
                                 "channels_first",
                                 "relu",
                                 "gelu",
                                 "tanh",
                                 "add",
                                 "layer_norm",
                                 "attention",
                                 "embedding",
                                 "patches",
                                 "prepend",
                                 "add_positions",
                                 "first_token",
                                 "other"};
  return kNames.at(static_cast<size_t>(kind));
}

// These names are in checkpoints and exports, so they must not change.
std::array<const char*, 5> norm_suffixes(NormNames names) {
  if (names == NormNames::kTorch)
    return {".weight", ".bias", ".running_mean", ".running_var", ".num_batches_tracked"};
  return {".gamma", ".beta", ".moving_mean", ".moving_variance", ".num_batches"};
}

std::vector<std::string> tensor_names(const NetworkLayer& layer) {
  const std::string& name = layer.name;
  switch (layer.kind) {
    case LayerKind::kLinear:
    case LayerKind::kConv2d:
    case LayerKind::kLayerNorm:
      if (!layer.has_bias) return {name + layer.separator + "weight"};
      return {name + layer.separator + "weight", name + layer.separator + "bias"};
    case LayerKind::kEmbedding:
      return {name + ".weight"};
    case LayerKind::kPrepend:
    case LayerKind::kAddPositions:
      return {name};
    case LayerKind::kBatchNorm: {
      const auto suffixes = norm_suffixes(layer.norm_names);
      return {name + suffixes[0], name + suffixes[1], name + suffixes[2], name + suffixes[3]};
    }
    default:
      return {};
  }
}

std::vector<int64_t> inputs_of(const Network& network, size_t i) {
  if (!network[i].inputs.empty()) return network[i].inputs;
  return {static_cast<int64_t>(i) - 1};  // kNetworkInput for the first layer
}

bool takes_tokens(const Network& network) {
  return !network.empty() && network.front().kind == LayerKind::kEmbedding;
}

at::Tensor Model::forward_of(const ForwardArguments& inputs) {
  if (inputs.tensors.size() == 1) return forward(inputs.tensors.front());
  throw Error(ExitCode::kConfig, "model",
              fmt::format("this network takes one tensor, the batch has {} ({}): use a network in "
                          "Python (model.type: python)",
                          inputs.tensors.size(),
                          inputs.names.empty() ? "without names"
                                               : fmt::format("{}", fmt::join(inputs.names, ", "))));
}

OwnLoss Model::own_loss(const ForwardArguments& /*batch*/) {
  throw Error(ExitCode::kConfig, "model",
              "this network has no own loss: train.loss own is for networks in Python; use auto");
}

at::Tensor Sequence::forward(const at::Tensor& inputs_BX) {
  std::vector<at::Tensor> values(places_.size());
  values[0] = inputs_BX;
  for (size_t i = 0; i < steps_.size(); ++i) {
    values[i + 1] = output_of(steps_[i], values);
    // Frees what no later step takes.
    for (const int64_t input : steps_[i].inputs)
      if (places_[static_cast<size_t>(input)].last_use == i)
        values[static_cast<size_t>(input)].reset();
  }
  return values.back();
}

at::Tensor Sequence::output_of(const Step& step, const std::vector<at::Tensor>& values) const {
  const at::Tensor& first = values[static_cast<size_t>(step.inputs.front())];
  if (step.compute) return step.compute(first);
  const bool in_place = may_overwrite(step.inputs.front());
  if (step.description->kind == LayerKind::kRelu) return in_place ? first.relu_() : at::relu(first);
  const at::Tensor& second = values[static_cast<size_t>(step.inputs.back())];
  return in_place ? first.add_(second) : first + second;
}

/// True if a ReLU or a sum may write over the value of this place: backward does not need it, and
/// no other step takes it. The output of a linear layer is a view, which autograd protects.
bool Sequence::may_overwrite(int64_t place) const {
  if (place == 0 || places_[static_cast<size_t>(place)].num_uses > 1) return false;
  const std::optional<NetworkLayer>& from = steps_[static_cast<size_t>(place - 1)].description;
  return from && (from->kind == LayerKind::kConv2d || from->kind == LayerKind::kBatchNorm ||
                  from->kind == LayerKind::kAdd);
}

Network Sequence::network() const {
  Network all;
  // Layer that gives the value of each place. A step without description passes its input on.
  std::vector<int64_t> layers = {kNetworkInput};
  for (const Step& step : steps_) {
    if (!step.description) {
      layers.push_back(layers[static_cast<size_t>(step.inputs.front())]);
      continue;
    }
    NetworkLayer layer = *step.description;
    for (const int64_t place : step.inputs)
      layer.inputs.push_back(layers[static_cast<size_t>(place)]);
    layers.push_back(static_cast<int64_t>(all.size()));
    all.push_back(std::move(layer));
  }
  return all;
}

void Sequence::add_step(Step step) {
  for (const int64_t input : step.inputs) {
    Place& place = places_[static_cast<size_t>(input)];
    place.last_use = steps_.size();
    ++place.num_uses;
  }
  steps_.push_back(std::move(step));
  places_.emplace_back();
  end_ = static_cast<int64_t>(steps_.size());
}

void Sequence::add(const NetworkLayer& layer, Compute compute) {
  add_step({layer, std::move(compute), {end_}});
}

void Sequence::add_undescribed(Compute compute) {
  add_step({std::nullopt, std::move(compute), {end_}});
}

void Sequence::add_attention(NetworkLayer layer, const Dropout& dropout) {
  layer.kind = LayerKind::kAttention;
  add(layer, [layer, dropout](const at::Tensor& qkv_BTX) {
    return attention(qkv_BTX, layer.num_heads, layer.is_causal, dropout);
  });
}

void Sequence::add_sum(int64_t first, int64_t second) {
  add_step({NetworkLayer{.kind = LayerKind::kAdd}, {}, {first, second}});
}

void Sequence::add(const NetworkLayer& layer) {
  if (layer.kind == LayerKind::kRelu) return add(layer, {});  // perhaps in place
  add(layer, [layer](const at::Tensor& values) -> at::Tensor {
    const int64_t kernel = layer.kernel_extent, stride = layer.stride, padding = layer.padding;
    switch (layer.kind) {
      case LayerKind::kFlatten:
        return values.flatten(1);
      case LayerKind::kMaxPool2d:
        return at::max_pool2d(values, {kernel, kernel}, {stride, stride}, {padding, padding});
      case LayerKind::kAdaptiveAveragePool2d:
        return at::adaptive_avg_pool2d(values, {kernel, kernel});
      case LayerKind::kGlobalAveragePool:
        return values.mean({2, 3}, /*keepdim=*/true);
      case LayerKind::kChannelsFirst:
        return values.permute({0, 3, 1, 2});
      case LayerKind::kGelu:
        return at::gelu(values);
      case LayerKind::kPatches:
        return values.flatten(2).transpose(1, 2);
      case LayerKind::kFirstToken:
        return values.select(1, 0);
      default:
        check(layer.kind == LayerKind::kTanh, "a layer without tensors");
        return at::tanh(values);
    }
  });
}

}  // namespace lockstep::model
