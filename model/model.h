#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/layer_hook.h"
#include "base/params.h"
#include "base/yaml_fields.h"
#include "model/layers.h"

namespace lockstep::model {

/// A network for classification. Symbols: B = samples, X = the shape of one input, C = classes.
///
/// Initial values are a pure function of (seed, parameter name), so every rank builds the same
/// model without a message.
class Model {
 public:
  Model() = default;
  virtual ~Model() = default;
  Model(const Model&) = delete;  // layers and callers keep addresses into it
  Model& operator=(const Model&) = delete;

  /// inputs_BX float32 -> logits_BC. B = 0 is allowed.
  virtual at::Tensor forward(const at::Tensor& inputs_BX) = 0;

  /// Parameters in the order in which forward uses them. The tensors share memory with the model.
  ParamTable& params() { return table_.params; }
  const ParamTable& params() const { return table_.params; }

  /// The layers that call a hook, in the order in which forward uses them.
  const std::vector<LayerInfo>& layers() const { return table_.layers; }
  /// From the next forward on, each layer passes its input and its weight through the hook, which
  /// must outlive its use here. Null: none, the default; it costs nothing.
  void set_layer_hook(LayerHook* hook) { table_.hook = hook; }

 protected:
  LayerTable table_;
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
