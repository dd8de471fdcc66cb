#include <fmt/format.h>

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

Conv2dOptions plain_conv(int64_t kernel, int64_t stride) {
  return {.kernel = kernel,
          .stride = stride,
          .padding = kernel / 2,
          .params = {.has_bias = false, .weight = {Initial::Kind::kFanOut}}};
}

/// Convolution without bias, followed by batch normalisation.
struct NormedConv {
  std::string conv_name, norm_name;
  int64_t num_inputs, num_outputs, kernel, stride;
};

void add(const NormedConv& layer, int64_t seed, Sequence* net) {
  net->add<Conv2d>(layer.conv_name, layer.num_inputs, layer.num_outputs,
                   plain_conv(layer.kernel, layer.stride), seed);
  net->add<BatchNorm>(layer.norm_name, layer.num_outputs, NormNames::kTorch);
}

/// Shape of a block; `width` is the number of outputs of its 3×3 convolutions.
struct BlockShape {
  int64_t num_inputs, width, stride;
  bool is_bottleneck;

  int64_t num_outputs() const { return is_bottleneck ? 4 * width : width; }
};

/// Adds a residual block relu(f(x) + x). A 1×1 convolution maps x if the shapes differ.
void add_block(const std::string& name, const BlockShape& shape, int64_t seed, Sequence* net) {
  const NetworkLayer relu{.kind = LayerKind::kRelu};
  const int64_t before = net->end();
  int64_t num_inputs = shape.num_inputs, i = 0;
  const auto add_conv = [&](int64_t num_outputs, int64_t kernel, int64_t stride) {
    if (i++ > 0) net->add(relu);  // none before the sum
    add({.conv_name = fmt::format("{}.conv{}", name, i),
         .norm_name = fmt::format("{}.bn{}", name, i),
         .num_inputs = num_inputs,
         .num_outputs = num_outputs,
         .kernel = kernel,
         .stride = stride},
        seed, net);
    num_inputs = num_outputs;
  };
  if (shape.is_bottleneck) add_conv(shape.width, 1, 1);
  add_conv(shape.width, 3, shape.stride);
  add_conv(shape.num_outputs(), shape.is_bottleneck ? 1 : 3, 1);
  const int64_t changed = net->end();
  net->continue_from(before);
  // The sum needs equal shapes on both sides.
  if (shape.stride != 1 || shape.num_inputs != shape.num_outputs())
    add({.conv_name = name + ".downsample.0",
         .norm_name = name + ".downsample.1",
         .num_inputs = shape.num_inputs,
         .num_outputs = shape.num_outputs(),
         .kernel = 1,
         .stride = shape.stride},
        seed, net);
  net->add_sum(changed, net->end());
  net->add(relu);
}

/// ResNet [B, C, H, W] -> [B, classes]: conv1, bn1, [3×3 max pooling,] layer1 to layer4, mean, fc.
std::unique_ptr<Model> make_resnet(const ResNetOptions& options, const ImageShape& image,
                                   const ModelInputs& data) {
  const bool has_pooling = options.stem == "imagenet";
  auto net = std::make_unique<Sequence>();
  int64_t num_inputs = 64;
  add({.conv_name = "conv1",
       .norm_name = "bn1",
       .num_inputs = image.channels,
       .num_outputs = num_inputs,
       .kernel = has_pooling ? 7 : 3,
       .stride = has_pooling ? 2 : 1},
      data.seed, net.get());
  net->add({.kind = LayerKind::kRelu});
  if (has_pooling)
    net->add({.kind = LayerKind::kMaxPool2d, .kernel_extent = 3, .stride = 2, .padding = 1});
  for (size_t layer = 0; layer < 4; ++layer)
    for (int64_t i = 0; i < options.num_blocks[layer]; ++i) {
      const BlockShape shape{.num_inputs = num_inputs,
                             .width = int64_t{64} << layer,
                             .stride = layer > 0 && i == 0 ? 2 : 1,
                             .is_bottleneck = options.has_bottlenecks};
      add_block(fmt::format("layer{}.{}", layer + 1, i), shape, data.seed, net.get());
      num_inputs = shape.num_outputs();
    }
  net->add({.kind = LayerKind::kGlobalAveragePool});
  net->add({.kind = LayerKind::kFlatten});
  net->add<Linear>("fc", num_inputs, data.num_classes, data.seed);
  return net;
}

ModelType resnet_type(const ResNetOptions& own) {
  return {own.type, [own](ConfigReader* in) -> MakeModel {
            ResNetOptions options = own;
            in->read_choice("stem", &options.stem, {"imagenet", "cifar"},
                            "resnet18, resnet50: cifar: 3x3 stem without pooling for images of "
                            "about 32x32");
            return [options](const ModelInputs& data) {
              return make_resnet(options, require_images(data, options.type, 8), data);
            };
          }};
}

}  // namespace

ModelType resnet18_type() { return resnet_type({.type = "resnet18", .num_blocks = {2, 2, 2, 2}}); }
ModelType resnet50_type() {
  return resnet_type({.type = "resnet50", .num_blocks = {3, 4, 6, 3}, .has_bottlenecks = true});
}

}  // namespace lockstep::model
