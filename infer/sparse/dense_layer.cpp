#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/hardtanh.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/mkldnn_reorder_conv2d_weight.h>
#include <fmt/format.h>

#include "base/error.h"
#include "infer/sparse/layer.h"

namespace lockstep::infer {
namespace {

using Scalars = c10::List<std::optional<at::Scalar>>;
/// LibTorch's operators for Inductor: a convolution by oneDNN with what follows it.
using Pointwise = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                             at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, int64_t,
                             std::string_view, Scalars, std::optional<std::string_view>);
using Binary = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                          const std::optional<at::Tensor>&, at::IntArrayRef, at::IntArrayRef,
                          at::IntArrayRef, int64_t, std::string_view, std::optional<at::Scalar>,
                          std::optional<std::string_view>, Scalars,
                          std::optional<std::string_view>);

/// True for convolutions with the usual padding.
bool is_common(const Layer& layer) {
  if (layer.takes_max) return false;
  const int64_t kernel = layer.weight.size(2);
  const auto& pads = layer.pads;
  return kernel == layer.weight.size(3) && layer.stride[0] == layer.stride[1] &&
         layer.dilation == std::array<int64_t, 2>{1, 1} && std::ranges::max(pads) < kernel &&
         std::ranges::max(pads) == std::ranges::min(pads) &&
         (layer.groups == 1 || layer.groups == layer.weight.size(0));
}

}  // namespace

double Layer::density() const {
  const auto num = static_cast<double>(std::max<int64_t>(1, weight.numel()));
  return static_cast<double>(weight.count_nonzero().item<int64_t>()) / num;
}

std::array<int64_t, 2> Layer::output_size(int64_t height, int64_t width) const {
  std::array<int64_t, 2> sizes{height, width};
  for (size_t axis = 0; axis < 2; ++axis) {
    const int64_t kernel = dilation[axis] * (weight.size(static_cast<int64_t>(axis) + 2) - 1) + 1;
    const int64_t room = sizes[axis] + pads[axis] + pads[axis + 2] - kernel;
    if (room < 0 || sizes[axis] < 1)
      throw Error(ExitCode::kBadData, "infer",
                  fmt::format("layer {}: inputs of {} x {} are smaller than its kernel", name,
                              height, width));
    sizes[axis] = room / stride[axis] + 1;
  }
  return sizes;
}

at::Tensor DenseLayer::run_plain(const at::Tensor& inputs, const at::Tensor& residual) const {
  at::Tensor outputs;
  if (layer_.is_linear) {
    outputs = at::linear(inputs.contiguous(), layer_.weight.flatten(1), layer_.bias);
  } else {
    const auto& [top, left, bottom, right] = layer_.pads;
    // LibTorch pools with a padding of at most half of the kernel. oneDNN has ended the process for
    // a padding beyond the kernel.
    const auto reach = [&](size_t axis) {
      const int64_t kernel = layer_.weight.size(static_cast<int64_t>(axis) + 2);
      return layer_.takes_max ? kernel : layer_.dilation[axis] * (kernel - 1) + 1;
    };
    const bool pads_before =
        top != bottom || left != right || 2 * top > reach(0) || 2 * left > reach(1);
    constexpr float kLeast = -std::numeric_limits<float>::infinity();
    const at::Tensor images = pads_before ? at::constant_pad_nd(inputs, {left, right, top, bottom},
                                                                layer_.takes_max ? kLeast : 0)
                                          : inputs;
    const std::array<int64_t, 2> pads =
        pads_before ? std::array<int64_t, 2>{} : std::array<int64_t, 2>{top, left};
    outputs = layer_.takes_max ? at::max_pool2d(images, layer_.weight.sizes().slice(2),
                                                layer_.stride, pads, layer_.dilation)
                               : at::conv2d(images, layer_.weight, layer_.bias, layer_.stride,
                                            at::IntArrayRef(pads), layer_.dilation, layer_.groups);
  }
  if (residual.defined()) outputs = outputs + residual;  // which may be larger
  if (!layer_.clamps()) return outputs;
  if (layer_.low == 0 && !layer_.has_high()) return outputs.relu_();
  return at::hardtanh_(outputs, layer_.low, layer_.high);
}

at::Tensor DenseLayer::convolve(const at::Tensor& inputs, const at::Tensor& residual) {
  const std::array<int64_t, 2> pads{layer_.pads[0], layer_.pads[1]};
  if (!packed_.defined())
    packed_ = at::mkldnn_reorder_conv2d_weight(layer_.weight.to_mkldnn(), pads, layer_.stride,
                                               layer_.dilation, layer_.groups, inputs.sizes());
  auto& dispatcher = c10::Dispatcher::singleton();
  const bool is_hardtanh = layer_.clamps() && (layer_.has_high() || layer_.low != 0);
  const char* const clamp = !layer_.clamps() ? "none" : is_hardtanh ? "hardtanh" : "relu";
  Scalars bounds;
  if (is_hardtanh) bounds = Scalars({at::Scalar(layer_.low), at::Scalar(layer_.high)});
  if (!residual.defined()) {
    static const auto run =
        dispatcher.findSchemaOrThrow("mkldnn::_convolution_pointwise", "").typed<Pointwise>();
    return run.call(inputs, packed_, layer_.bias, pads, layer_.stride, layer_.dilation,
                    layer_.groups, clamp, bounds, "");
  }
  static const auto run =
      dispatcher.findSchemaOrThrow("mkldnn::_convolution_pointwise", "binary").typed<Binary>();
  // With a sum, LibTorch's operator has ReLU only.
  const bool is_relu = layer_.clamps() && !is_hardtanh;
  at::Tensor outputs = run.call(inputs, residual, packed_, layer_.bias, pads, layer_.stride,
                                layer_.dilation, layer_.groups, "add", at::Scalar(1.0),
                                is_relu ? std::optional<std::string_view>(clamp) : std::nullopt,
                                Scalars(), std::nullopt);
  return is_hardtanh ? outputs.clamp_(layer_.low, layer_.high) : outputs;
}

at::Tensor DenseLayer::run(const Activations& inputs, const Activations& residual) {
  if (layer_.is_linear) return run_plain(inputs.tensor, residual.tensor);
  const auto channels_last = [](const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.is_contiguous(at::MemoryFormat::ChannelsLast)) return tensor;
    at::Tensor copied =
        at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::ChannelsLast));
    copy_pixels(tensor, copied);
    return copied;
  };
  const at::Tensor images = channels_last(inputs.tensor);
  const at::Tensor sums = channels_last(residual.tensor);
  return is_common(layer_) ? convolve(images, sums) : run_plain(images, sums);
}

}  // namespace lockstep::infer
