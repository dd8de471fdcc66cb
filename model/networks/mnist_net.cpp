#include <optional>

#include <ATen/ops/relu.h>
#include <fmt/format.h>

#include "model/layers.h"
#include "model/networks/images.h"
#include "model/networks/model_table.h"

namespace lockstep::model {
namespace {

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
