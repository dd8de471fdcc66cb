#include "model/networks/small_networks.h"

#include <algorithm>
#include <optional>

#include <ATen/ops/gelu.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tanh.h>
#include <fmt/format.h>

#include "model/layers.h"

namespace lockstep::model {
namespace {

/// Network for 8×8 digits: three convolutions and a linear layer, with GELU, 25,866 parameters:
///   [B, 1, 8, 8] -> blocks.0.conv [B, 16, 8, 8] -> blocks.1.conv [B, 32, 4, 4]
///   -> blocks.2.conv [B, 64, 2, 2] -> classifier [B, 10]
/// It is smooth (strides replace pooling) and has no batch statistics or dropout. So rounding alone
/// does not make runs with different world sizes diverge (docs/design/numerics.md).
class DigitsNet final : public Model {
 public:
  explicit DigitsNet(int64_t seed)
      : conv0_("blocks.0.conv", 1, 16, 1, seed, &table_),
        conv1_("blocks.1.conv", 16, 32, 2, seed, &table_),
        conv2_("blocks.2.conv", 32, 64, 2, seed, &table_),
        classifier_("classifier", 64 * 2 * 2, 10, seed, &table_) {}

  at::Tensor forward(const at::Tensor& inputs_B1HW) override {
    const at::Tensor features = at::gelu(conv2_(at::gelu(conv1_(at::gelu(conv0_(inputs_B1HW))))));
    return classifier_(features.flatten(1));
  }

  Network network() const override {
    const NetworkLayer gelu{.kind = LayerKind::kGelu};
    return {conv0_.description(), gelu, conv1_.description(),          gelu,
            conv2_.description(), gelu, {.kind = LayerKind::kFlatten}, classifier_.description()};
  }

 private:
  Conv3x3 conv0_, conv1_, conv2_;
  Linear classifier_;
};

/// Linear layers layers.0, layers.1, ... of the given widths with an activation between them.
/// Inputs are flattened.
class Mlp final : public Model {
 public:
  Mlp(const MlpOptions& options, int64_t seed)
      : activation_(options.activation == "relu"   ? LayerKind::kRelu
                    : options.activation == "tanh" ? LayerKind::kTanh
                                                   : LayerKind::kGelu) {
    const std::vector<int64_t>& widths = options.layers;
    for (size_t i = 0; i + 1 < widths.size(); ++i)
      layers_.emplace_back(fmt::format("layers.{}", i), widths[i], widths[i + 1], seed, &table_);
  }

  at::Tensor forward(const at::Tensor& inputs_BX) override {
    at::Tensor values = inputs_BX.flatten(1);
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (i > 0) values = activated(values);
      values = layers_[i](values);
    }
    return values;
  }

  Network network() const override {
    Network all = {{.kind = LayerKind::kFlatten}};
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (i > 0) all.push_back({.kind = activation_});
      all.push_back(layers_[i].description());
    }
    return all;
  }

 private:
  at::Tensor activated(const at::Tensor& values) const {
    if (activation_ == LayerKind::kRelu) return at::relu(values);
    return activation_ == LayerKind::kTanh ? at::tanh(values) : at::gelu(values);
  }

  std::vector<Linear> layers_;
  LayerKind activation_;
};

// forward() and network() of Cnn must describe the same sequence of layers: exports use the latter.
bool pools_after(size_t conv) { return conv % 2 == 1; }

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
class Cnn final : public Model {
 public:
  /// The data must pass is_large_enough().
  Cnn(const CnnOptions& options, const ModelInputs& data) {
    const std::vector<int64_t>&image = data.input_shape, &channels = options.channels;
    int64_t num_inputs = image[0];
    for (size_t i = 0; i < channels.size(); ++i) {
      convs_.emplace_back(fmt::format("blocks.{}.conv", i), num_inputs, channels[i], /*stride=*/1,
                          data.seed, &table_);
      if (options.batch_norm)
        norms_.emplace_back(fmt::format("blocks.{}.norm", i), channels[i], &table_);
      num_inputs = channels[i];
    }
    const int64_t num_features =
        num_inputs * pooled(image[1], channels.size()) * pooled(image[2], channels.size());
    hidden_.emplace("hidden", num_features, options.hidden, data.seed, &table_);
    classifier_.emplace("classifier", options.hidden, data.num_classes, data.seed, &table_);
  }

  at::Tensor forward(const at::Tensor& inputs_BCHW) override {
    at::Tensor features = inputs_BCHW;
    for (size_t i = 0; i < convs_.size(); ++i) {
      features = convs_[i](features);
      if (!norms_.empty()) features = norms_[i](features);
      features = at::relu(features);
      if (pools_after(i)) features = at::max_pool2d(features, {2, 2});
    }
    return (*classifier_)(at::relu((*hidden_)(features.flatten(1))));
  }

  Network network() const override {
    Network all;
    for (size_t i = 0; i < convs_.size(); ++i) {
      all.push_back(convs_[i].description());
      if (!norms_.empty()) all.push_back(norms_[i].description());
      all.push_back({.kind = LayerKind::kRelu});
      if (pools_after(i))
        all.push_back({.kind = LayerKind::kMaxPool2d, .kernel_extent = 2, .stride = 2});
    }
    all.push_back({.kind = LayerKind::kFlatten});
    all.push_back(hidden_->description());
    all.push_back({.kind = LayerKind::kRelu});
    all.push_back(classifier_->description());
    return all;
  }

 private:
  std::vector<Conv3x3> convs_;
  std::vector<BatchNorm> norms_;               // empty, or one per convolution
  std::optional<Linear> hidden_, classifier_;  // created after the convolutions
};

/// LeNet-5 with ReLU and max pooling, with the names of PyTorch's tutorials: conv1 (6 of 5×5),
/// conv2 (16 of 5×5), fc1 (120), fc2 (84), fc3 (classes). Images of 28×28 are padded by 2 to 32×32.
/// Source: LeCun et al., Proceedings of the IEEE 86 (1998).
class LeNet final : public Model {
 public:
  LeNet(const ImageShape& image, const ModelInputs& data)
      : image_(image),
        conv1_("conv1", image.channels, 6, {.kernel = 5, .padding = image.rows == 28 ? 2 : 0},
               data.seed, &table_),
        conv2_("conv2", 6, 16, {.kernel = 5}, data.seed, &table_),
        linear1_("fc1", 16 * 5 * 5, 120, data.seed, &table_),
        linear2_("fc2", 120, 84, data.seed, &table_),
        classifier_("fc3", 84, data.num_classes, data.seed, &table_) {}

  at::Tensor forward(const at::Tensor& inputs_BX) override {
    at::Tensor values = channels_first(inputs_BX, image_);
    values = at::max_pool2d(conv1_(values).relu_(), {2, 2});
    values = at::max_pool2d(conv2_(values).relu_(), {2, 2});
    return classifier_(at::relu(linear2_(at::relu(linear1_(values.flatten(1))))));
  }

  Network network() const override {
    const NetworkLayer relu{.kind = LayerKind::kRelu},
        pool{.kind = LayerKind::kMaxPool2d, .kernel_extent = 2, .stride = 2};
    Network all{conv1_.description(),
                relu,
                pool,
                conv2_.description(),
                relu,
                pool,
                {.kind = LayerKind::kFlatten},
                linear1_.description(),
                relu,
                linear2_.description(),
                relu,
                classifier_.description()};
    if (image_.channels_last) all.insert(all.begin(), {.kind = LayerKind::kChannelsFirst});
    return all;
  }

 private:
  const ImageShape image_;
  Conv2d conv1_, conv2_;
  Linear linear1_, linear2_, classifier_;
};

/// Four 5×5 convolutions with ReLU: 16, 32, 64 and 128 outputs, the second and the fourth with
/// stride 2. Then the mean of each channel and a linear layer. Names as in Neural Magic's network
/// of this name: mnist_net.blocks.conv0.conv to conv3, mnist_net.classifier.fc. Images of 28×28,
/// [1, 28, 28] or [28, 28, 1].
class MnistNet final : public Model {
 public:
  MnistNet(const ImageShape& image, const ModelInputs& data) : image_(image) {
    int64_t num_inputs = image.channels;
    for (int64_t i = 0; i < 4; ++i) {
      const int64_t num_outputs = int64_t{16} << i;
      convs_.emplace_back(fmt::format("mnist_net.blocks.conv{}.conv", i), num_inputs, num_outputs,
                          Conv2dOptions{.kernel = 5, .stride = 1 + i % 2, .padding = 2}, data.seed,
                          &table_);
      num_inputs = num_outputs;
    }
    classifier_.emplace("mnist_net.classifier.fc", num_inputs, data.num_classes, data.seed,
                        &table_);
  }

  at::Tensor forward(const at::Tensor& inputs_BX) override {
    at::Tensor values = channels_first(inputs_BX, image_);
    for (const Conv2d& conv : convs_) values = conv(values).relu_();
    // The mean makes the classifier independent of the image's size.
    return (*classifier_)(values.mean({2, 3}));
  }

  Network network() const override {
    Network all;
    if (image_.channels_last) all.push_back({.kind = LayerKind::kChannelsFirst});
    for (const Conv2d& conv : convs_) {
      all.push_back(conv.description());
      all.push_back({.kind = LayerKind::kRelu});
    }
    all.push_back({.kind = LayerKind::kGlobalAveragePool});
    all.push_back({.kind = LayerKind::kFlatten});
    all.push_back(classifier_->description());
    return all;
  }

 private:
  const ImageShape image_;
  std::vector<Conv2d> convs_;
  std::optional<Linear> classifier_;
};

}  // namespace

ModelOptions digits_net() {
  return {"digits_net", [](const ModelInputs& data) {
            require_fit(data.input_shape == std::vector<int64_t>{1, 8, 8} &&
                            data.num_classes == 10 && data.input_dtype == at::kFloat,
                        "digits_net", "inputs [1, 8, 8] and 10 classes", data);
            return std::make_unique<DigitsNet>(data.seed);
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
            return std::make_unique<Mlp>(options, data.seed);
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
            return std::make_unique<Cnn>(options, data);
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
              return std::make_unique<LeNet>(image, data);
            };
          }};
}

ModelType mnist_net_type() {
  return {"mnist_net", [](ConfigReader*) -> MakeModel {
            return [](const ModelInputs& data) {
              const ImageShape image = require_images(data, "mnist_net", 1, /*may_be_last=*/true);
              require_fit(image.channels == 1 && image.rows == 28 && image.columns == 28,
                          "mnist_net", "images [1, 28, 28] or [28, 28, 1]", data);
              return std::make_unique<MnistNet>(image, data);
            };
          }};
}

}  // namespace lockstep::model
