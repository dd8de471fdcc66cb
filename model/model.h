#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/params.h"
#include "base/yaml_fields.h"

namespace lockstep::model {

/// A network for classification. Symbols: B = samples, X = the shape of one input, C = classes.
///
/// Initial values are a pure function of (seed, parameter name), so every rank builds the same
/// model without a message.
class Model {
 public:
  virtual ~Model() = default;

  /// inputs_BX float32 -> logits_BC. B = 0 is allowed.
  virtual at::Tensor forward(const at::Tensor& inputs_BX) = 0;

  /// Parameters in the order in which forward uses them. The tensors share memory with the model.
  ParamTable& params() { return params_; }
  const ParamTable& params() const { return params_; }

 protected:
  ParamTable params_;
};

/// Section `model` of the run file.
struct ModelOptions {
  std::string type = "digits_net";
  std::vector<int64_t> layers;      ///< mlp: widths from input to classes
  std::string activation = "gelu";  ///< mlp: gelu | tanh | relu
};

ModelOptions read_model_options(YamlFields in);

/// Throws Error(kConfig) if the data's shape or number of classes does not fit the model.
std::unique_ptr<Model> make_model(const ModelOptions& options,
                                  const std::vector<int64_t>& input_shape, int64_t num_classes,
                                  int64_t seed);

}  // namespace lockstep::model
