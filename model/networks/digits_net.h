#pragma once

#include "model/layers.h"
#include "model/model.h"
#include "model/networks/model_table.h"

namespace lockstep::model {

/// Network for 8×8 digits: three convolutions and a linear layer, with GELU, 25,866 parameters:
///   [B, 1, 8, 8] -> blocks.0.conv [B, 16, 8, 8] -> blocks.1.conv [B, 32, 4, 4]
///   -> blocks.2.conv [B, 64, 2, 2] -> classifier [B, 10]
/// It is smooth and has no batch statistics or dropout. So rounding alone does not make runs with
/// different world sizes diverge (docs/numerics.md).
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

}  // namespace lockstep::model
