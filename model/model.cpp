#include "model/model.h"

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

at::Tensor Model::own_loss(const at::Tensor& /*inputs_BX*/, const at::Tensor& /*targets_BY*/) {
  throw Error(ExitCode::kConfig, "model",
              "this network has no own loss: train.loss own is for networks in Python; use auto");
}

}  // namespace lockstep::model
