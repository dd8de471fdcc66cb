#pragma once

#include <optional>
#include <vector>

#include "model/batch_norm.h"
#include "model/layers.h"
#include "model/model.h"

namespace lockstep::model {

/// Convolutions for images, [B, C, H, W] -> [B, classes]:
///   blocks.<i>.conv   3×3, ReLU; after every second one the largest of each 2×2
///   blocks.<i>.norm   if wanted: batch normalisation before the ReLU
///   hidden            linear over all that is left of the image, ReLU
///   classifier        linear
class Cnn final : public Model {
 public:
  /// image: C, H, W; see fits().
  Cnn(const std::vector<int64_t>& image, const ModelOptions& options, int64_t num_classes,
      int64_t seed);
  at::Tensor forward(const at::Tensor& inputs_BCHW) override;
  Network network() const override;

  /// Whether an input of this shape is an image that is not used up by the poolings.
  static bool fits(const std::vector<int64_t>& input_shape, const std::vector<int64_t>& channels);

 private:
  std::vector<Conv3x3> convs_;
  std::vector<BatchNorm> norms_;               // empty, or one a convolution
  std::optional<Linear> hidden_, classifier_;  // made behind the convolutions
};

}  // namespace lockstep::model
