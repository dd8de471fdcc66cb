#include "model/networks/mlp.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tanh.h>
#include <fmt/format.h>

namespace lockstep::model {
// ATen's functions have several overloads: these have one, for the function pointer.
namespace {

at::Tensor gelu(const at::Tensor& values) { return at::gelu(values); }
at::Tensor relu(const at::Tensor& values) { return at::relu(values); }
at::Tensor tanh(const at::Tensor& values) { return at::tanh(values); }

}  // namespace

Mlp::Mlp(const MlpOptions& options, int64_t seed)
    : activation_(options.activation == "relu"   ? relu
                  : options.activation == "tanh" ? tanh
                                                 : gelu),
      activation_kind_(options.activation == "relu"   ? LayerKind::kRelu
                       : options.activation == "tanh" ? LayerKind::kTanh
                                                      : LayerKind::kGelu) {
  const std::vector<int64_t>& widths = options.layers;
  for (size_t i = 0; i + 1 < widths.size(); ++i)
    layers_.emplace_back(fmt::format("layers.{}", i), widths[i], widths[i + 1], seed, &table_);
}

at::Tensor Mlp::forward(const at::Tensor& inputs_BX) {
  at::Tensor values = inputs_BX.flatten(1);
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (i > 0) values = activation_(values);
    values = layers_[i](values);
  }
  return values;
}

Network Mlp::network() const {
  Network all = {{.kind = LayerKind::kFlatten}};
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (i > 0) all.push_back({.kind = activation_kind_});
    all.push_back(layers_[i].description());
  }
  return all;
}

ModelOptions mlp(const MlpOptions& options) {
  return {"mlp", [options](const ModelInputs& data) {
            const int64_t inputs = options.layers.front(), classes = options.layers.back();
            // The product of the shape counts: inputs are flattened.
            require_fit(data.input_size() == inputs && data.num_classes == classes &&
                            data.input_dtype == at::kFloat,
                        "mlp", fmt::format("{} inputs and {} classes", inputs, classes), data);
            return std::make_unique<Mlp>(options, data.seed);
          }};
}

ModelType mlp_type() {
  return {"mlp", [](ConfigReader* in) {
            MlpOptions options;
            // No default widths: they must fit the data.
            in->require("layers");
            in->read("layers", &options.layers, between(1, 1e6),
                     "mlp: widths from input to classes, e.g. [784, 4096, 10]");
            in->read_choice("activation", &options.activation, {"gelu", "tanh", "relu"},
                            "mlp: between the layers");
            if (in->has("layers") && options.layers.size() < 2)
              in->fault("layers", "'model.layers' needs at least two widths");
            return mlp(options).make;
          }};
}

}  // namespace lockstep::model
