#include "model/cnn.h"

#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>
#include <fmt/format.h>

namespace lockstep::model {
namespace {

bool pools_after(size_t conv) { return conv % 2 == 1; }

/// Rows or columns that are left of an image's.
int64_t pooled(int64_t extent, size_t num_convs) { return extent >> (num_convs / 2); }

}  // namespace

bool Cnn::fits(const std::vector<int64_t>& input_shape, const std::vector<int64_t>& channels) {
  return input_shape.size() == 3 && input_shape[0] > 0 && channels.size() < 64 &&
         pooled(input_shape[1], channels.size()) > 0 && pooled(input_shape[2], channels.size()) > 0;
}

Cnn::Cnn(const std::vector<int64_t>& image, const ModelOptions& options, int64_t num_classes,
         int64_t seed) {
  const std::vector<int64_t>& channels = options.channels;
  int64_t num_inputs = image[0];
  for (size_t i = 0; i < channels.size(); ++i) {
    convs_.emplace_back(fmt::format("blocks.{}.conv", i), num_inputs, channels[i], /*stride=*/1,
                        seed, &table_);
    if (options.batch_norm)
      norms_.emplace_back(fmt::format("blocks.{}.norm", i), channels[i], &table_);
    num_inputs = channels[i];
  }
  const int64_t num_features =
      num_inputs * pooled(image[1], channels.size()) * pooled(image[2], channels.size());
  hidden_.emplace("hidden", num_features, options.hidden, seed, &table_);
  classifier_.emplace("classifier", options.hidden, num_classes, seed, &table_);
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

}  // namespace lockstep::model
