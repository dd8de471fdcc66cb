#include "model/model.h"

#include <array>

#include <ATen/ops/gelu.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tanh.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace lockstep::model {

std::string kind_name(LayerKind kind) {
  constexpr std::array kNames = {
      "flatten",        "linear", "conv2d", "batch_norm", "max_pool2d", "global_average_pool",
      "channels_first", "relu",   "gelu",   "tanh",       "other"};
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
  if (layer.kind == LayerKind::kLinear || layer.kind == LayerKind::kConv2d) {
    if (!layer.has_bias) return {name + ".weight"};
    return {name + ".weight", name + ".bias"};
  }
  if (layer.kind != LayerKind::kBatchNorm) return {};
  const auto suffixes = norm_suffixes(layer.norm_names);
  return {name + suffixes[0], name + suffixes[1], name + suffixes[2], name + suffixes[3]};
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
  at::Tensor values = inputs_BX;
  for (const Step& step : steps_) values = step.compute(values);
  return values;
}

Network Sequence::network() const {
  Network all;
  for (const Step& step : steps_)
    if (step.description) all.push_back(*step.description);
  return all;
}

void Sequence::add(const NetworkLayer& layer) {
  const bool is_after = !steps_.empty() && steps_.back().description;
  const LayerKind before = is_after ? steps_.back().description->kind : LayerKind::kOther;
  // A ReLU may overwrite the outputs of these layers, but not those of linear(), which are a view.
  const bool in_place = before == LayerKind::kConv2d || before == LayerKind::kBatchNorm;
  const auto compute = [layer, in_place](const at::Tensor& values) -> at::Tensor {
    switch (layer.kind) {
      case LayerKind::kFlatten:
        return values.flatten(1);
      case LayerKind::kMaxPool2d:
        return at::max_pool2d(values, {layer.kernel_extent, layer.kernel_extent});
      case LayerKind::kGlobalAveragePool:
        return values.mean({2, 3}, /*keepdim=*/true);
      case LayerKind::kChannelsFirst:
        return values.permute({0, 3, 1, 2});
      case LayerKind::kRelu:
        return in_place ? values.relu_() : at::relu(values);
      case LayerKind::kGelu:
        return at::gelu(values);
      default:
        check(layer.kind == LayerKind::kTanh, "a layer without tensors");
        return at::tanh(values);
    }
  };
  steps_.push_back({layer, compute});
}

}  // namespace lockstep::model
