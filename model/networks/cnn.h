#pragma once

#include <optional>
#include <vector>

#include "model/batch_norm.h"
#include "model/layers.h"
#include "model/model.h"
#include "model/networks/model_table.h"

namespace lockstep::model {

struct CnnOptions {
  std::vector<int64_t> channels = {64, 64, 128,
                                   128};  ///< outputs of each convolution; at least one
  int64_t hidden = 240;                   ///< width before the classifier
  bool batch_norm = false;                ///< between convolution and ReLU
};

/// Convolutional network for images, [B, C, H, W] -> [B, classes]:
///   blocks.<i>.conv   3×3, ReLU; after every second one 2×2 max pooling
///   blocks.<i>.norm   optional: batch normalisation before the ReLU
///   hidden            linear layer over the remaining image, ReLU
///   classifier        linear
class Cnn final : public Model {
 public:
  /// data.input_shape: C, H, W, which must pass fits().
  Cnn(const CnnOptions& options, const ModelInputs& data);
  at::Tensor forward(const at::Tensor& inputs_BCHW) override;
  Network network() const override;

  /// True if an input of this shape is an image that is larger than its poolings.
  static bool fits(const std::vector<int64_t>& input_shape, const std::vector<int64_t>& channels);

 private:
  std::vector<Conv3x3> convs_;
  std::vector<BatchNorm> norms_;               // empty, or one per convolution
  std::optional<Linear> hidden_, classifier_;  // created after the convolutions
};

ModelOptions cnn(const CnnOptions& options = {});
ModelType cnn_type();

}  // namespace lockstep::model
