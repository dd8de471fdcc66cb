#include "model/mlp.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tanh.h>
#include <fmt/format.h>

namespace lockstep::model {
namespace {

at::Tensor gelu(const at::Tensor& values) { return at::gelu(values); }
at::Tensor relu(const at::Tensor& values) { return at::relu(values); }
at::Tensor tanh(const at::Tensor& values) { return at::tanh(values); }

}  // namespace

Mlp::Mlp(const std::vector<int64_t>& widths, const std::string& activation, int64_t seed)
    : activation_(activation == "relu"   ? relu
                  : activation == "tanh" ? tanh
                                         : gelu),
      activation_kind_(activation == "relu"   ? LayerKind::kRelu
                       : activation == "tanh" ? LayerKind::kTanh
                                              : LayerKind::kGelu) {
  for (size_t i = 0; i + 1 < widths.size(); ++i)
    layers_.emplace_back(fmt::format("layers.{}", i), widths[i], widths[i + 1], seed, &table_);
}

at::Tensor Mlp::forward(const at::Tensor& inputs_BX) {
  at::Tensor values = inputs_BX.flatten(1);
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (i > 0) values = activation_(values);
    values = layers_[i](values);
  }
  return values;
}

Network Mlp::network() const {
  Network all = {{.kind = LayerKind::kFlatten}};
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (i > 0) all.push_back({.kind = activation_kind_});
    all.push_back(layers_[i].description());
  }
  return all;
}

}  // namespace lockstep::model
