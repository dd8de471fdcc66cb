#include <fmt/format.h>

#include "model/networks/model_table.h"

/// Deep stacks of 3×3 convolutions with torchvision's names. Source: Simonyan, Zisserman, arXiv
/// 1409.1556, configurations A and D.
namespace lockstep::model {
namespace {

constexpr int64_t kPooledExtent = 7;
constexpr int64_t kHalf = 0;  // in a list of channels: 2×2 max pooling

struct VggOptions {
  std::string type;
  std::vector<int64_t> features;  ///< outputs of convolutions, and kHalf
  int64_t hidden = 4096;
  double dropout = 0.5;
};

/// VGG [B, C, H, W] -> [B, classes]: features.<n>, mean over 7×7 parts, classifier.<n>.
std::unique_ptr<Model> make_vgg(const VggOptions& options, const ImageShape& image,
                                const ModelInputs& data) {
  auto net = std::make_unique<Sequence>();
  int64_t num_inputs = image.channels, rows = image.rows, columns = image.columns, index = 0;
  for (const int64_t channels : options.features) {
    index += channels == kHalf ? 1 : 2;  // torchvision also counts a convolution's ReLU
    if (channels == kHalf) {
      net->add({.kind = LayerKind::kMaxPool2d, .kernel_extent = 2, .stride = 2});
      rows /= 2;
      columns /= 2;
      continue;
    }
    net->add<Conv2d>(
        fmt::format("features.{}", index - 2), num_inputs, channels,
        Conv2dOptions{.kernel = 3,
                      .padding = 1,
                      .params = {.weight = {Initial::Kind::kFanOut}, .bias = constant(0)}},
        data.seed);
    net->add({.kind = LayerKind::kRelu});
    num_inputs = channels;
  }
  if (rows != kPooledExtent || columns != kPooledExtent)  // not of images of 224×224
    net->add({.kind = LayerKind::kAdaptiveAveragePool2d,
              .kernel_extent = kPooledExtent,
              .image = {rows, columns}});
  net->add({.kind = LayerKind::kFlatten});
  // torchvision's initial values.
  const LayerParamsOptions params{.weight = normal(0.01), .bias = constant(0)};
  const std::vector<int64_t> widths{num_inputs * kPooledExtent * kPooledExtent, options.hidden,
                                    options.hidden, data.num_classes};
  for (size_t i = 0; i < 3; ++i) {
    net->add<Linear>(fmt::format("classifier.{}", 3 * i), widths[i], widths[i + 1], params,
                     data.seed);
    if (i == 2) break;
    net->add({.kind = LayerKind::kRelu});
    net->add_dropout(fmt::format("classifier.{}", 3 * i + 2), options.dropout, data.seed);
  }
  return net;
}

ModelType vgg_type(const VggOptions& own) {
  return {own.type, [own](ConfigReader* in) -> MakeModel {
            VggOptions options = own;
            in->read("hidden", &options.hidden, between(1, 1e6),
                     "vgg11, vgg16: width of the two hidden linear layers");
            in->read("dropout", &options.dropout, half_open(0, 1),
                     "vgg11, vgg16: dropout probability");
            return [options](const ModelInputs& data) {
              return make_vgg(options, require_images(data, options.type, 32), data);
            };
          }};
}

}  // namespace

ModelType vgg11_type() {
  return vgg_type(
      {.type = "vgg11",
       .features = {64, kHalf, 128, kHalf, 256, 256, kHalf, 512, 512, kHalf, 512, 512, kHalf}});
}
ModelType vgg16_type() {
  return vgg_type({.type = "vgg16",
                   .features = {64, 64, kHalf, 128, 128, kHalf, 256, 256, 256, kHalf, 512, 512, 512,
                                kHalf, 512, 512, 512, kHalf}});
}

}  // namespace lockstep::model
