#include "model/networks/small_networks.h"

#include <algorithm>
#include <memory>

#include <fmt/format.h>

namespace lockstep::model {
namespace {

const NetworkLayer kPooling{.kind = LayerKind::kMaxPool2d, .kernel_extent = 2, .stride = 2};

/// Network for 8×8 digits: three convolutions and a linear layer, with GELU, 25,866 parameters:
///   [B, 1, 8, 8] -> blocks.0.conv [B, 16, 8, 8] -> blocks.1.conv [B, 32, 4, 4]
///   -> blocks.2.conv [B, 64, 2, 2] -> classifier [B, 10]
/// It is smooth (strides replace pooling) and has no batch statistics or dropout. So rounding alone
/// does not make runs with different world sizes diverge (docs/design/numerics.md).
std::unique_ptr<Model> make_digits_net(int64_t seed) {
  auto net = std::make_unique<Sequence>();
  int64_t num_inputs = 1;
  for (int64_t i = 0; i < 3; ++i) {
    const int64_t num_outputs = int64_t{16} << i, stride = i == 0 ? 1 : 2;
    net->add<Conv3x3>(fmt::format("blocks.{}.conv", i), num_inputs, num_outputs, stride, seed);
    net->add({.kind = LayerKind::kGelu});
    num_inputs = num_outputs;
  }
  net->add({.kind = LayerKind::kFlatten});
  net->add<Linear>("classifier", num_inputs * 2 * 2, 10, seed);
  return net;
}

/// Linear layers layers.0, ... of these widths with an activation between them; flattens inputs.
std::unique_ptr<Model> make_mlp(const MlpOptions& options, int64_t seed) {
  const LayerKind activation = options.activation == "relu"   ? LayerKind::kRelu
                               : options.activation == "tanh" ? LayerKind::kTanh
                                                              : LayerKind::kGelu;
  const std::vector<int64_t>& widths = options.layers;
  auto net = std::make_unique<Sequence>();
  net->add({.kind = LayerKind::kFlatten});
  for (size_t i = 0; i + 1 < widths.size(); ++i) {
    if (i > 0) net->add({.kind = activation});
    net->add<Linear>(fmt::format("layers.{}", i), widths[i], widths[i + 1], seed);
  }
  return net;
}

/// Rows or columns of the image after all poolings.
int64_t pooled(int64_t extent, size_t num_convs) { return extent >> (num_convs / 2); }

/// True if an input of this shape is an image that is larger than its poolings.
bool is_large_enough(const std::vector<int64_t>& input_shape,
                     const std::vector<int64_t>& channels) {
  // Each pooling halves the image; 64 poolings would shift an int64 out.
  return input_shape.size() == 3 && input_shape[0] > 0 && channels.size() < 64 &&
         pooled(input_shape[1], channels.size()) > 0 && pooled(input_shape[2], channels.size()) > 0;
}

/// Convolutional network for images, [B, C, H, W] -> [B, classes]:
///   blocks.<i>.conv   3×3, ReLU; after every second one 2×2 max pooling
///   blocks.<i>.norm   optional: batch normalisation before the ReLU
///   hidden            linear layer over the remaining image, ReLU
///   classifier        linear
/// The data must pass is_large_enough().
std::unique_ptr<Model> make_cnn(const CnnOptions& options, const ModelInputs& data) {
  const std::vector<int64_t>&image = data.input_shape, &channels = options.channels;
  auto net = std::make_unique<Sequence>();
  int64_t num_inputs = image[0];
  for (size_t i = 0; i < channels.size(); ++i) {
    net->add<Conv3x3>(fmt::format("blocks.{}.conv", i), num_inputs, channels[i], /*stride=*/1,
                      data.seed);
    if (options.batch_norm) net->add<BatchNorm>(fmt::format("blocks.{}.norm", i), channels[i]);
    net->add({.kind = LayerKind::kRelu});
    if (i % 2 == 1) net->add(kPooling);
    num_inputs = channels[i];
  }
  const int64_t num_features =
      num_inputs * pooled(image[1], channels.size()) * pooled(image[2], channels.size());
  net->add({.kind = LayerKind::kFlatten});
  net->add<Linear>("hidden", num_features, options.hidden, data.seed);
  net->add({.kind = LayerKind::kRelu});
  net->add<Linear>("classifier", options.hidden, data.num_classes, data.seed);
  return net;
}

/// LeNet-5 with ReLU and max pooling, with the names of PyTorch's tutorials: conv1 (6 of 5×5),
/// conv2 (16 of 5×5), fc1 (120), fc2 (84), fc3 (classes). Images of 28×28 are padded by 2 to 32×32.
/// Source: LeCun et al., Proceedings of the IEEE 86 (1998).
std::unique_ptr<Model> make_lenet(const ImageShape& image, const ModelInputs& data) {
  const NetworkLayer relu{.kind = LayerKind::kRelu};
  auto net = std::make_unique<Sequence>();
  if (image.channels_last) net->add({.kind = LayerKind::kChannelsFirst});
  net->add<Conv2d>("conv1", image.channels, 6,
                   Conv2dOptions{.kernel = 5, .padding = image.rows == 28 ? 2 : 0}, data.seed);
  net->add(relu);
  net->add(kPooling);
  net->add<Conv2d>("conv2", 6, 16, Conv2dOptions{.kernel = 5}, data.seed);
  net->add(relu);
  net->add(kPooling);
  net->add({.kind = LayerKind::kFlatten});
  net->add<Linear>("fc1", 16 * 5 * 5, 120, data.seed);
  net->add(relu);
  net->add<Linear>("fc2", 120, 84, data.seed);
  net->add(relu);
  net->add<Linear>("fc3", 84, data.num_classes, data.seed);
  return net;
}

/// Four 5×5 convolutions with ReLU: 16, 32, 64 and 128 outputs, the second and the fourth with
/// stride 2. Then the mean of each channel, which makes the classifier independent of the image's
/// size, and a linear layer. Names as in Neural Magic's network of this name:
/// mnist_net.blocks.conv0.conv to conv3, mnist_net.classifier.fc. Images of 28×28, [1, 28, 28] or
/// [28, 28, 1].
std::unique_ptr<Model> make_mnist_net(const ImageShape& image, const ModelInputs& data) {
  auto net = std::make_unique<Sequence>();
  if (image.channels_last) net->add({.kind = LayerKind::kChannelsFirst});
  int64_t num_inputs = image.channels;
  for (int64_t i = 0; i < 4; ++i) {
    const int64_t num_outputs = int64_t{16} << i;
    net->add<Conv2d>(fmt::format("mnist_net.blocks.conv{}.conv", i), num_inputs, num_outputs,
                     Conv2dOptions{.kernel = 5, .stride = 1 + i % 2, .padding = 2}, data.seed);
    net->add({.kind = LayerKind::kRelu});
    num_inputs = num_outputs;
  }
  net->add({.kind = LayerKind::kGlobalAveragePool});
  net->add({.kind = LayerKind::kFlatten});
  net->add<Linear>("mnist_net.classifier.fc", num_inputs, data.num_classes, data.seed);
  return net;
}

}  // namespace

ModelOptions digits_net() {
  return {"digits_net", [](const ModelInputs& data) {
            require_fit(data.input_shape == std::vector<int64_t>{1, 8, 8} &&
                            data.num_classes == 10 && data.input_dtype == at::kFloat,
                        "digits_net", "inputs [1, 8, 8] and 10 classes", data);
            return make_digits_net(data.seed);
          }};
}

ModelType digits_net_type() {
  return {"digits_net", [](ConfigReader*) { return digits_net().make; }};
}

ModelOptions mlp(const MlpOptions& options) {
  return {"mlp", [options](const ModelInputs& data) {
            const int64_t inputs = options.layers.front(), classes = options.layers.back();
            // The product of the shape counts: inputs are flattened.
            require_fit(data.input_size() == inputs && data.num_classes == classes &&
                            data.input_dtype == at::kFloat,
                        "mlp", fmt::format("{} inputs and {} classes", inputs, classes), data);
            return make_mlp(options, data.seed);
          }};
}

ModelType mlp_type() {
  return {"mlp", [](ConfigReader* in) {
            MlpOptions options;
            // No default widths: they must fit the data.
            in->require("layers");
            in->read("layers", &options.layers, between(1, 1e6),
                     "mlp: widths from input to classes, e.g. [784, 4096, 10]");
            in->read_choice("activation", &options.activation, {"gelu", "tanh", "relu"},
                            "mlp: activation between layers");
            if (in->has("layers") && options.layers.size() < 2)
              in->fault("layers", "'model.layers' needs at least two widths");
            return mlp(options).make;
          }};
}

ModelOptions cnn(const CnnOptions& options) {
  return {"cnn", [options](const ModelInputs& data) {
            // The shift below stays defined for any number of convolutions.
            const size_t num_poolings = std::min<size_t>(options.channels.size() / 2, 62);
            require_fit(is_large_enough(data.input_shape, options.channels) &&
                            data.input_dtype == at::kFloat,
                        "cnn",
                        fmt::format("images [channels, rows, columns] of at least {0}x{0}",
                                    int64_t{1} << num_poolings),
                        data);
            return make_cnn(options, data);
          }};
}

ModelType cnn_type() {
  return {"cnn", [](ConfigReader* in) {
            CnnOptions options;
            in->read("channels", &options.channels, between(1, 1e6),
                     "cnn: output channels of each 3x3 convolution; pooling after every second "
                     "one");
            in->read("hidden", &options.hidden, between(1, 1e6),
                     "cnn: width of the hidden linear layer");
            in->read("batch_norm", &options.batch_norm,
                     "cnn: batch normalization after each convolution");
            if (options.channels.empty())
              in->fault("channels", "'model.channels' needs at least one convolution");
            return cnn(options).make;
          }};
}

ModelType lenet_type() {
  return {"lenet", [](ConfigReader*) -> MakeModel {
            return [](const ModelInputs& data) {
              const ImageShape image = require_images(data, "lenet", 1, /*may_be_last=*/true);
              require_fit(image.rows == image.columns && (image.rows == 28 || image.rows == 32),
                          "lenet", "images of 28x28 or 32x32", data);
              return make_lenet(image, data);
            };
          }};
}

ModelType mnist_net_type() {
  return {"mnist_net", [](ConfigReader*) -> MakeModel {
            return [](const ModelInputs& data) {
              const ImageShape image = require_images(data, "mnist_net", 1, /*may_be_last=*/true);
              require_fit(image.channels == 1 && image.rows == 28 && image.columns == 28,
                          "mnist_net", "images [1, 28, 28] or [28, 28, 1]", data);
              return make_mnist_net(image, data);
            };
          }};
}

}  // namespace lockstep::model
