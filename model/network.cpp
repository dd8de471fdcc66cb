#include "model/network.h"

namespace lockstep::model {

std::string kind_name(LayerKind kind) {
  switch (kind) {
    case LayerKind::kFlatten:
      return "flatten";
    case LayerKind::kLinear:
      return "linear";
    case LayerKind::kConv2d:
      return "conv2d";
    case LayerKind::kBatchNorm:
      return "batch_norm";
    case LayerKind::kMaxPool2d:
      return "max_pool2d";
    case LayerKind::kRelu:
      return "relu";
    case LayerKind::kGelu:
      return "gelu";
    case LayerKind::kTanh:
      return "tanh";
    case LayerKind::kOther:
      break;
  }
  return "other";
}

std::vector<std::string> tensor_names(const NetworkLayer& layer) {
  const std::string& name = layer.name;
  if (layer.kind == LayerKind::kLinear || layer.kind == LayerKind::kConv2d)
    return {name + ".weight", name + ".bias"};
  if (layer.kind == LayerKind::kBatchNorm)
    return {name + ".gamma", name + ".beta", name + ".moving_mean", name + ".moving_variance"};
  return {};
}

}  // namespace lockstep::model
