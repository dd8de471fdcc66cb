#include "model/networks/cnn.h"

#include <algorithm>

#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>
#include <fmt/format.h>

namespace lockstep::model {
// forward() and network() must describe the same sequence of layers: exports use the latter.
namespace {

bool pools_after(size_t conv) { return conv % 2 == 1; }

/// Rows or columns of the image after all poolings.
int64_t pooled(int64_t extent, size_t num_convs) { return extent >> (num_convs / 2); }

}  // namespace

bool Cnn::fits(const std::vector<int64_t>& input_shape, const std::vector<int64_t>& channels) {
  // Each pooling halves the image; 64 poolings would shift an int64 out.
  return input_shape.size() == 3 && input_shape[0] > 0 && channels.size() < 64 &&
         pooled(input_shape[1], channels.size()) > 0 && pooled(input_shape[2], channels.size()) > 0;
}

Cnn::Cnn(const CnnOptions& options, const ModelInputs& data) {
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

at::Tensor Cnn::forward(const at::Tensor& inputs_BCHW) {
  at::Tensor features = inputs_BCHW;
  for (size_t i = 0; i < convs_.size(); ++i) {
    features = convs_[i](features);
    if (!norms_.empty()) features = norms_[i](features);
    features = at::relu(features);
    if (pools_after(i)) features = at::max_pool2d(features, {2, 2});
  }
  return (*classifier_)(at::relu((*hidden_)(features.flatten(1))));
}

Network Cnn::network() const {
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

ModelOptions cnn(const CnnOptions& options) {
  return {"cnn", [options](const ModelInputs& data) {
            // The shift below stays defined for any number of convolutions.
            const size_t num_poolings = std::min<size_t>(options.channels.size() / 2, 62);
            require_fit(
                Cnn::fits(data.input_shape, options.channels) && data.input_dtype == at::kFloat,
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
                     "cnn: outputs of each 3x3 convolution; after every second one the image is "
                     "halved");
            in->read("hidden", &options.hidden, between(1, 1e6),
                     "cnn: width of the linear layer before the classes");
            in->read("batch_norm", &options.batch_norm,
                     "cnn: normalise what each convolution gives; train.batch_norm says over which "
                     "samples");
            if (options.channels.empty())
              in->fault("channels", "'model.channels' needs at least one convolution");
            return cnn(options).make;
          }};
}

}  // namespace lockstep::model
