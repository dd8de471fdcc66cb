#include <ATen/ops/adaptive_avg_pool2d.h>
#include <fmt/format.h>

#include "base/error.h"
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
class Vgg final : public Sequence {
 public:
  Vgg(const VggOptions& options, const ImageShape& image, const ModelInputs& data)
      : type_(options.type),
        image_(image),
        // Five poolings halve 224 to 7, so images of 224×224 need no adaptive pooling.
        is_pooled_(image.rows / 32 != kPooledExtent || image.columns / 32 != kPooledExtent) {
    int64_t num_inputs = image.channels, index = 0;
    for (const int64_t channels : options.features) {
      index += channels == kHalf ? 1 : 2;  // torchvision also counts a convolution's ReLU
      if (channels == kHalf) {
        add({.kind = LayerKind::kMaxPool2d, .kernel_extent = 2, .stride = 2});
        continue;
      }
      add<Conv2d>(
          fmt::format("features.{}", index - 2), num_inputs, channels,
          Conv2dOptions{.kernel = 3,
                        .padding = 1,
                        .params = {.weight = {Initial::Kind::kFanOut}, .bias = constant(0)}},
          data.seed);
      add({.kind = LayerKind::kRelu});
      num_inputs = channels;
    }
    if (is_pooled_)
      add_undescribed([](const at::Tensor& values) {
        return at::adaptive_avg_pool2d(values, {kPooledExtent, kPooledExtent});
      });
    add({.kind = LayerKind::kFlatten});
    // torchvision's initial values.
    const LayerParamsOptions params{.weight = normal(0.01), .bias = constant(0)};
    const std::vector<int64_t> widths{num_inputs * kPooledExtent * kPooledExtent, options.hidden,
                                      options.hidden, data.num_classes};
    for (size_t i = 0; i < 3; ++i) {
      add<Linear>(fmt::format("classifier.{}", 3 * i), widths[i], widths[i + 1], params, data.seed);
      if (i == 2) break;
      add({.kind = LayerKind::kRelu});
      add_undescribed(
          Dropout(fmt::format("classifier.{}", 3 * i + 2), options.dropout, data.seed, &table_));
    }
  }

  /// Describes the network. Throws Error(kUsage) for images other than 224×224: no kind of layer
  /// describes their pooling.
  Network network() const override {
    if (!is_pooled_) return Sequence::network();
    throw Error(
        ExitCode::kUsage, "export",
        fmt::format("{} has images of {}x{}: TorchScript and ONNX support it only for 224x224, "
                    "so only its tensors can be written: --format safetensors or tensorflow",
                    type_, image_.rows, image_.columns));
  }

 private:
  const std::string type_;
  const ImageShape image_;
  const bool is_pooled_;
};

ModelType vgg_type(const VggOptions& own) {
  return {own.type, [own](ConfigReader* in) -> MakeModel {
            VggOptions options = own;
            in->read("hidden", &options.hidden, between(1, 1e6),
                     "vgg11, vgg16: width of the two hidden linear layers");
            in->read("dropout", &options.dropout, half_open(0, 1),
                     "vgg11, vgg16: dropout probability");
            return [options](const ModelInputs& data) {
              return std::make_unique<Vgg>(options, require_images(data, options.type, 32), data);
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
