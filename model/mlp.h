#pragma once

#include <string>

#include "model/layers.h"
#include "model/model.h"

namespace lockstep::model {

/// Linear layers layers.0, layers.1, ... of the given widths with an activation between; inputs are
/// flattened.
class Mlp final : public Model {
 public:
  /// widths: inputs, hidden layers, classes. activation: gelu | tanh | relu.
  Mlp(const std::vector<int64_t>& widths, const std::string& activation, int64_t seed);
  at::Tensor forward(const at::Tensor& inputs_BX) override;
  Network network() const override;

 private:
  std::vector<Linear> layers_;
  at::Tensor (*activation_)(const at::Tensor&);
  LayerKind activation_kind_;
};

}  // namespace lockstep::model
