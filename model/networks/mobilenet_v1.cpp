#include <algorithm>
#include <array>
#include <optional>

#include <ATen/ops/relu.h>
#include <fmt/format.h>

#include "model/layers.h"
#include "model/networks/model_table.h"

namespace lockstep::model {
namespace {

// Strides and outputs of the depthwise convolutions.
constexpr std::array<int64_t, 13> kStrides = {1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1};
constexpr std::array<int64_t, 13> kChannels = {64,  128, 128, 256, 256,  512, 512,
                                               512, 512, 512, 512, 1024, 1024};

/// Depthwise and pointwise convolutions, each with batch normalisation and ReLU, with the names of
/// TensorFlow (slim): Conv2d_0, Conv2d_<n>_depthwise, Conv2d_<n>_pointwise, each with .weight and
/// .BatchNorm.gamma, ...; Logits. A stride of 2 pads all four sides by 1, as in PyTorch; TensorFlow
/// pads two sides. Source: Howard et al., arXiv 1704.04861.
class MobileNetV1 final : public Model {
 public:
  MobileNetV1(double width, const ImageShape& image, const ModelInputs& data) : seed_(data.seed) {
    // At least 8 channels, as in TensorFlow's depth multiplier.
    const auto scaled = [&](int64_t channels) {
      return std::max<int64_t>(8, static_cast<int64_t>(static_cast<double>(channels) * width));
    };
    int64_t num_inputs = scaled(32);
    add("Conv2d_0", image.channels, num_inputs, {.kernel = 3, .stride = 2, .padding = 1});
    for (size_t i = 0; i < kStrides.size(); ++i) {
      const int64_t num_outputs = scaled(kChannels[i]);
      add(fmt::format("Conv2d_{}_depthwise", i + 1), num_inputs, num_inputs,
          {.kernel = 3, .stride = kStrides[i], .padding = 1, .groups = num_inputs});
      add(fmt::format("Conv2d_{}_pointwise", i + 1), num_inputs, num_outputs, {.kernel = 1});
      num_inputs = num_outputs;
    }
    classifier_.emplace("Logits", num_inputs, data.num_classes, data.seed, &table_);
  }

  at::Tensor forward(const at::Tensor& inputs_BCHW) override {
    at::Tensor values = inputs_BCHW;
    for (size_t i = 0; i < convs_.size(); ++i) values = norms_[i](convs_[i](values)).relu_();
    return (*classifier_)(values.mean({2, 3}));
  }

  Network network() const override {
    Network all;
    for (size_t i = 0; i < convs_.size(); ++i) {
      all.push_back(convs_[i].description());
      all.push_back(norms_[i].description());
      all.push_back({.kind = LayerKind::kRelu});
    }
    all.push_back({.kind = LayerKind::kGlobalAveragePool});
    all.push_back({.kind = LayerKind::kFlatten});
    all.push_back(classifier_->description());
    return all;
  }

 private:
  void add(const std::string& name, int64_t num_inputs, int64_t num_outputs,
           Conv2dOptions options) {
    options.params = {.has_bias = false, .weight = {Initial::Kind::kFanOut}};
    if (options.groups > 1) options.params.weight = normal(1.0 / 3);  // each output has 9 inputs
    convs_.emplace_back(name, num_inputs, num_outputs, options, seed_, &table_);
    norms_.emplace_back(name + ".BatchNorm", num_outputs, &table_);
  }

  const int64_t seed_;
  std::vector<Conv2d> convs_;
  std::vector<BatchNorm> norms_;
  std::optional<Linear> classifier_;
};

}  // namespace

ModelType mobilenet_v1_type() {
  return {"mobilenet_v1", [](ConfigReader* in) -> MakeModel {
            double width = 1;
            in->read("width_multiplier", &width, between(0.05, 8),
                     "mobilenet_v1: factor of the number of channels, at least 8 each");
            return [width](const ModelInputs& data) {
              return std::make_unique<MobileNetV1>(width, require_images(data, "mobilenet_v1", 32),
                                                   data);
            };
          }};
}

}  // namespace lockstep::model
