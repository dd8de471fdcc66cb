#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/layers.h"
#include "model/model.h"
#include "model/networks/model_table.h"

/// Small networks: digits_net, mlp and cnn.
namespace lockstep::model {

/// Network for 8×8 digits: three convolutions and a linear layer, with GELU, 25,866 parameters:
///   [B, 1, 8, 8] -> blocks.0.conv [B, 16, 8, 8] -> blocks.1.conv [B, 32, 4, 4]
///   -> blocks.2.conv [B, 64, 2, 2] -> classifier [B, 10]
/// It is smooth and has no batch statistics or dropout. So rounding alone does not make runs with
/// different world sizes diverge (docs/design/numerics.md).
class DigitsNet final : public Model {
 public:
  explicit DigitsNet(int64_t seed);
  at::Tensor forward(const at::Tensor& inputs_B1HW) override;
  Network network() const override;

 private:
  Conv3x3 conv0_;
  Conv3x3 conv1_;
  Conv3x3 conv2_;
  Linear classifier_;
};

ModelOptions digits_net();
ModelType digits_net_type();

struct MlpOptions {
  std::vector<int64_t> layers;      ///< widths: inputs, hidden layers, classes; at least two
  std::string activation = "gelu";  ///< gelu | tanh | relu
};

/// Linear layers layers.0, layers.1, ... of the given widths with an activation between them.
/// Inputs are flattened.
class Mlp final : public Model {
 public:
  Mlp(const MlpOptions& options, int64_t seed);
  at::Tensor forward(const at::Tensor& inputs_BX) override;
  Network network() const override;

 private:
  std::vector<Linear> layers_;
  at::Tensor (*activation_)(const at::Tensor&);
  LayerKind activation_kind_;
};

ModelOptions mlp(const MlpOptions& options);
ModelType mlp_type();

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
