#include <algorithm>
#include <array>
#include <memory>

#include <fmt/format.h>

#include "model/networks/model_table.h"

namespace lockstep::model {
namespace {

// Strides and outputs of the depthwise convolutions.
constexpr std::array<int64_t, 13> kStrides = {1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1};
constexpr std::array<int64_t, 13> kChannels = {64,  128, 128, 256, 256,  512, 512,
                                               512, 512, 512, 512, 1024, 1024};

/// Adds a convolution with batch normalisation and ReLU.
void add_conv(const std::string& name, int64_t num_inputs, int64_t num_outputs,
              Conv2dOptions options, int64_t seed, Sequence* net) {
  options.params = {.has_bias = false, .weight = {Initial::Kind::kFanOut}};
  if (options.groups > 1) options.params.weight = normal(1.0 / 3);  // each output has 9 inputs
  net->add<Conv2d>(name, num_inputs, num_outputs, options, seed);
  net->add<BatchNorm>(name + ".BatchNorm", num_outputs);
  net->add({.kind = LayerKind::kRelu});
}

/// Depthwise and pointwise convolutions, each with batch normalisation and ReLU, with the names of
/// TensorFlow (slim): Conv2d_0, Conv2d_<n>_depthwise, Conv2d_<n>_pointwise, each with .weight and
/// .BatchNorm.gamma, ...; Logits. A stride of 2 pads all four sides by 1, as in PyTorch; TensorFlow
/// pads two sides. Source: Howard et al., arXiv 1704.04861.
std::unique_ptr<Model> make_mobilenet_v1(double width, const ImageShape& image,
                                         const ModelInputs& data) {
  // At least 8 channels, as in TensorFlow's depth multiplier.
  const auto scaled = [&](int64_t channels) {
    return std::max<int64_t>(8, static_cast<int64_t>(static_cast<double>(channels) * width));
  };
  auto net = std::make_unique<Sequence>();
  int64_t num_inputs = scaled(32);
  add_conv("Conv2d_0", image.channels, num_inputs, {.kernel = 3, .stride = 2, .padding = 1},
           data.seed, net.get());
  for (size_t i = 0; i < kStrides.size(); ++i) {
    const int64_t num_outputs = scaled(kChannels[i]);
    add_conv(fmt::format("Conv2d_{}_depthwise", i + 1), num_inputs, num_inputs,
             {.kernel = 3, .stride = kStrides[i], .padding = 1, .groups = num_inputs}, data.seed,
             net.get());
    add_conv(fmt::format("Conv2d_{}_pointwise", i + 1), num_inputs, num_outputs, {.kernel = 1},
             data.seed, net.get());
    num_inputs = num_outputs;
  }
  net->add({.kind = LayerKind::kGlobalAveragePool});
  net->add({.kind = LayerKind::kFlatten});
  net->add<Linear>("Logits", num_inputs, data.num_classes, data.seed);
  return net;
}

}  // namespace

ModelType mobilenet_v1_type() {
  return {"mobilenet_v1", [](ConfigReader* in) -> MakeModel {
            double width = 1;
            in->read("width_multiplier", &width, between(0.05, 8),
                     "mobilenet_v1: factor of the number of channels, at least 8 each");
            return [width](const ModelInputs& data) {
              return make_mobilenet_v1(width, require_images(data, "mobilenet_v1", 32), data);
            };
          }};
}

}  // namespace lockstep::model
