#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "base/tensors/params.h"
#include "dist/reduction_modes.h"

namespace lockstep::tests {

/// One bucket a buffer, reduced whole in finish().
inline const dist::SyncOptions kWholeBuffers{.bucket_bytes = std::numeric_limits<int64_t>::max(),
                                             .overlap = "false",
                                             .sparse_allreduce = "never"};

/// A network of tanh layers with `width` numbers in and out, whose parameters and gradients are
/// views of two flat buffers, as in training: weights, and biases. In memory the last layer comes
/// first. Values are the same on every rank. With `unused`, each layer has a further bias that the
/// network does not touch.
class FlatModel {
 public:
  explicit FlatModel(int64_t num_layers = 4, int64_t width = 12, bool unused = false)
      : num_layers_(num_layers) {
    for (int64_t layer = 0; layer < num_layers; ++layer) {
      const std::string name = "layers." + std::to_string(layer);
      add(name + ".weight", {width, width}, true);
      add(name + ".bias", {width}, false);
      if (unused) add(name + ".unused", {3}, false);
    }
    buffers.push_back(flatten(kWeightGroup));
    buffers.push_back(flatten(kOtherGroup));
  }

  at::Tensor forward(at::Tensor x_BX) const {
    for (int64_t layer = 0; layer < num_layers_; ++layer)
      x_BX = at::tanh(at::linear(x_BX, weight(layer), bias(layer)));
    return x_BX;
  }

  const at::Tensor& weight(int64_t layer) const { return params[layer * stride()].tensor; }
  const at::Tensor& bias(int64_t layer) const { return params[layer * stride() + 1].tensor; }

  void zero_grads() {
    for (FlatBuffer& buffer : buffers)
      if (!buffer.frozen) buffer.grads_E.zero_();
  }

  /// All gradients of buffers that are not frozen, one after another.
  at::Tensor all_grads() const {
    std::vector<at::Tensor> parts;
    for (const FlatBuffer& buffer : buffers)
      if (!buffer.frozen) parts.push_back(buffer.grads_E);
    return at::cat(parts);
  }

  ParamTable params;
  std::vector<FlatBuffer> buffers;

 private:
  int64_t stride() const { return static_cast<int64_t>(params.size()) / num_layers_; }

  void add(const std::string& name, std::vector<int64_t> shape, bool decayed) {
    int64_t num_elements = 1;
    for (const int64_t size : shape) num_elements *= size;
    const at::Tensor numbers =
        at::arange(num_elements, at::kFloat) + static_cast<double>(params.size()) * 7;
    at::Tensor tensor = at::sin(numbers * 1.7).mul(0.4).view(shape).contiguous();
    tensor.set_requires_grad(true);
    params.push_back({name, tensor, decayed, decayed});
  }

  FlatBuffer flatten(int group) {
    FlatBuffer buffer{.group = group};
    int64_t offset_E = 0;
    for (auto i = static_cast<int64_t>(params.size()) - 1; i >= 0; --i) {
      if (group_of(params[i]) != group) continue;
      buffer.slices.push_back({i, offset_E, params[i].tensor.numel()});
      offset_E += params[i].tensor.numel();
    }
    const at::NoGradGuard no_grad;
    buffer.values_E = at::empty({offset_E}, at::kFloat);
    buffer.grads_E = at::zeros({offset_E}, at::kFloat);
    for (const FlatSlice& slice : buffer.slices) {
      at::Tensor& tensor = params[slice.param].tensor;
      const auto part = [&](const at::Tensor& flat_E) {
        return flat_E.narrow(0, slice.offset_E, slice.num_elements).view(tensor.sizes());
      };
      part(buffer.values_E).copy_(tensor.detach());
      tensor.set_data(part(buffer.values_E));
      tensor.mutable_grad() = part(buffer.grads_E);
    }
    return buffer;
  }

  int64_t num_layers_;
};

}  // namespace lockstep::tests
