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
                                   128};  ///< outputs of each convolution; >= 1 of them
  int64_t hidden = 240;                   ///< width before the classes
  bool batch_norm = false;                ///< between convolution and ReLU
};

/// Convolutions for images, [B, C, H, W] -> [B, classes]:
///   blocks.<i>.conv   3×3, ReLU; after every second one the largest of each 2×2
///   blocks.<i>.norm   if wanted: batch normalisation before the ReLU
///   hidden            linear over all that is left of the image, ReLU
///   classifier        linear
class Cnn final : public Model {
 public:
  /// data.input_shape: C, H, W; see fits().
  Cnn(const CnnOptions& options, const ModelInputs& data);
  at::Tensor forward(const at::Tensor& inputs_BCHW) override;
  Network network() const override;

  /// Whether an input of this shape is an image that is not used up by the poolings.
  static bool fits(const std::vector<int64_t>& input_shape, const std::vector<int64_t>& channels);

 private:
  std::vector<Conv3x3> convs_;
  std::vector<BatchNorm> norms_;               // empty, or one a convolution
  std::optional<Linear> hidden_, classifier_;  // made after the convolutions
};

ModelOptions cnn(const CnnOptions& options = {});
ModelType cnn_type();

}  // namespace lockstep::model
