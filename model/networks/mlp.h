#pragma once

#include <string>

#include "model/layers.h"
#include "model/model.h"
#include "model/networks/model_table.h"

namespace lockstep::model {

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

}  // namespace lockstep::model
