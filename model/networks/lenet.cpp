#include <optional>

#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>

#include "model/layers.h"
#include "model/networks/images.h"
#include "model/networks/model_table.h"

namespace lockstep::model {
namespace {

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

}  // namespace

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

}  // namespace lockstep::model
