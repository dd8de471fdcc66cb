#include <optional>

#include <ATen/TensorOperators.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>
#include <fmt/format.h>

#include "model/layers.h"
#include "model/networks/model_table.h"

/// Residual networks with torchvision's names. Source: He et al., arXiv 1512.03385. As in
/// torchvision, resnet50 has its strides in the 3×3 convolutions.
namespace lockstep::model {
namespace {

struct ResNetOptions {
  std::string type;
  std::vector<int64_t> num_blocks;  ///< blocks in layer1 to layer4
  bool has_bottlenecks = false;     ///< 1×1, 3×3, 1×1 in a block, else 3×3, 3×3
  std::string stem = "imagenet";
};

/// Convolution without bias, followed by batch normalisation.
struct NormedConv {
  NormedConv(const std::string& conv_name, const std::string& norm_name, int64_t num_inputs,
             int64_t num_outputs, const Conv2dOptions& options, int64_t seed, LayerTable* table)
      : conv(conv_name, num_inputs, num_outputs, options, seed, table),
        norm(norm_name, num_outputs, table, NormNames::kTorch) {}
  at::Tensor operator()(const at::Tensor& inputs) const { return norm(conv(inputs)); }

  Conv2d conv;
  BatchNorm norm;
};

Conv2dOptions plain_conv(int64_t kernel, int64_t stride) {
  return {.kernel = kernel,
          .stride = stride,
          .padding = kernel / 2,
          .params = {.has_bias = false, .weight = {Initial::Kind::kFanOut}}};
}

/// Shape of a block; `width` is the number of outputs of its 3×3 convolutions.
struct BlockShape {
  int64_t num_inputs, width, stride;
  bool is_bottleneck;

  int64_t num_outputs() const { return is_bottleneck ? 4 * width : width; }
};

/// Residual block relu(f(x) + x). A 1×1 convolution maps x if the shapes differ.
class ResNetBlock {
 public:
  ResNetBlock(const std::string& name, const BlockShape& shape, int64_t seed, LayerTable* table) {
    int64_t num_inputs = shape.num_inputs;
    const auto add = [&](int64_t num_outputs, int64_t kernel, int64_t stride) {
      const size_t i = convs_.size() + 1;
      convs_.emplace_back(fmt::format("{}.conv{}", name, i), fmt::format("{}.bn{}", name, i),
                          num_inputs, num_outputs, plain_conv(kernel, stride), seed, table);
      num_inputs = num_outputs;
    };
    if (shape.is_bottleneck) add(shape.width, 1, 1);
    add(shape.width, 3, shape.stride);
    add(shape.num_outputs(), shape.is_bottleneck ? 1 : 3, 1);
    // The sum needs equal shapes on both sides.
    if (shape.stride != 1 || shape.num_inputs != shape.num_outputs())
      shortcut_.emplace(name + ".downsample.0", name + ".downsample.1", shape.num_inputs,
                        shape.num_outputs(), plain_conv(1, shape.stride), seed, table);
  }

  at::Tensor operator()(const at::Tensor& inputs) const {
    at::Tensor values = inputs;
    for (size_t i = 0; i + 1 < convs_.size(); ++i) values = convs_[i](values).relu_();
    // No ReLU before the sum.
    values = convs_.back()(values);
    // In place: the block's own output is not needed otherwise.
    return values.add_(shortcut_ ? (*shortcut_)(inputs) : inputs).relu_();
  }

 private:
  std::vector<NormedConv> convs_;
  std::optional<NormedConv> shortcut_;
};

/// ResNet [B, C, H, W] -> [B, classes]: conv1, bn1, [3×3 max pooling,] layer1 to layer4, mean, fc.
class ResNet final : public Model {
 public:
  ResNet(const ResNetOptions& options, const ImageShape& image, const ModelInputs& data)
      : has_pooling_(options.stem == "imagenet"),
        stem_("conv1", "bn1", image.channels, 64,
              has_pooling_ ? plain_conv(7, 2) : plain_conv(3, 1), data.seed, &table_) {
    int64_t num_inputs = 64;
    for (size_t layer = 0; layer < 4; ++layer)
      for (int64_t i = 0; i < options.num_blocks[layer]; ++i) {
        const BlockShape shape{.num_inputs = num_inputs,
                               .width = int64_t{64} << layer,
                               .stride = layer > 0 && i == 0 ? 2 : 1,
                               .is_bottleneck = options.has_bottlenecks};
        blocks_.emplace_back(fmt::format("layer{}.{}", layer + 1, i), shape, data.seed, &table_);
        num_inputs = shape.num_outputs();
      }
    classifier_.emplace("fc", num_inputs, data.num_classes, data.seed, &table_);
  }

  at::Tensor forward(const at::Tensor& inputs_BCHW) override {
    at::Tensor values = stem_(inputs_BCHW).relu_();
    if (has_pooling_) values = at::max_pool2d(values, {3, 3}, {2, 2}, {1, 1});
    for (const ResNetBlock& block : blocks_) values = block(values);
    return (*classifier_)(values.mean({2, 3}));
  }

 private:
  bool has_pooling_;
  NormedConv stem_;
  std::vector<ResNetBlock> blocks_;
  std::optional<Linear> classifier_;
};

ModelType resnet_type(const ResNetOptions& own) {
  return {own.type, [own](ConfigReader* in) -> MakeModel {
            ResNetOptions options = own;
            in->read_choice("stem", &options.stem, {"imagenet", "cifar"},
                            "resnet18, resnet50: cifar: 3x3 stem without pooling for images of "
                            "about 32x32");
            return [options](const ModelInputs& data) {
              return std::make_unique<ResNet>(options, require_images(data, options.type, 8), data);
            };
          }};
}

}  // namespace

ModelType resnet18_type() { return resnet_type({.type = "resnet18", .num_blocks = {2, 2, 2, 2}}); }
ModelType resnet50_type() {
  return resnet_type({.type = "resnet50", .num_blocks = {3, 4, 6, 3}, .has_bottlenecks = true});
}

}  // namespace lockstep::model
