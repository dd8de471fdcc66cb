#include "infer/exports/portable_network.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "base/error.h"
#include "python/python_types.h"
#include "recal/quantization/int8_rounding.h"

// A network that describes its layers can be written in any format. One that runs its own code has
// no layers here.
namespace lockstep::exports {

PortableNetwork portable(const model::Model& model, const std::vector<int64_t>& input_shape,
                         int64_t num_classes, bool traces) {
  const auto* in_python = dynamic_cast<const python::PythonModel*>(&model);
  PortableNetwork network{.layers = traces && in_python != nullptr
                                        ? in_python->chain(input_shape.size() + 1)
                                        : model.network(),
                          .input_shape = input_shape,
                          .num_classes = num_classes};
  if (network.layers.empty())
    throw Error(
        ExitCode::kUsage, "export",
        "this network does not describe its layers (Model::network()), which TorchScript and ONNX "
        "need; use --format safetensors, tensorflow or pretrained");
  std::map<std::string, at::Tensor> all;
  for (const Param& param : model.params()) all[param.name] = param.tensor;
  for (const model::Buffer& buffer : model.buffers()) all[buffer.name] = buffer.tensor;
  for (const model::NetworkLayer& layer : network.layers)
    for (const std::string& name : model::tensor_names(layer)) {
      check(all.contains(name), "the network has no tensor '" + name + "' that a layer names");
      // On the CPU and contiguous, because writers read the memory directly.
      network.tensors[name] = all[name].detach().cpu().contiguous();
    }
  return network;
}

void refuse_layer(const model::Network& layers, size_t layer, const char* format) {
  const model::NetworkLayer& bad = layers[layer];
  throw Error(
      ExitCode::kUsage, "export",
      fmt::format(
          "layer {} of {} ({}{}) has no equivalent in {}; use --format safetensors, tensorflow or "
          "pretrained",
          layer + 1, layers.size(), model::kind_name(bad.kind),
          bad.name.empty() ? "" : " '" + bad.name + "'", format));
}

// The scales come from the same functions that fake quantization used in training, so exported
// networks round alike.

std::map<std::string, QuantizedLayer> quantized_layers(const CheckpointModel& saved) {
  std::map<std::string, QuantizedLayer> all;
  for (const auto& [name, layer] : saved.layers) {
    QuantizedLayer& made = all[name];
    const at::Tensor& weight = saved.params.at(name + ".weight").values;
    made.weight_scale =
        recal::weight_scales(weight, layer.scheme == recal::QuantizationScheme::kPerOutput);
    // Weights are quantized symmetrically, so their zero point is always 0.
    made.weight_zero_point = at::zeros(made.weight_scale.sizes(), at::kChar);
    made.int8_weight = recal::quantize_weight(weight, made.weight_scale);
    const recal::InputRanges::Range& range = layer.input_range;
    if (range.num_observations > 0) {  // without observations, inputs are not rounded
      const recal::InputScale by = recal::input_scale(range.min, range.max);
      made.input_scale = at::full({}, by.scale, at::kFloat);
      made.input_zero_point = at::full({}, by.zero_point, at::kByte);
    }
  }
  return all;
}

void require_quantized(const CheckpointModel& saved) {
  if (saved.layers.empty())
    throw Error(ExitCode::kUsage, "export",
                saved.prefix +
                    ": no layer of it is quantized: name a checkpoint written after a "
                    "!QuantizationModifier started, or remove --quantize");
  for (const auto& [name, layer] : saved.layers)
    if (layer.input_range.num_observations == 0)
      throw Error(ExitCode::kUsage, "export",
                  fmt::format("{}: the inputs of {} were not observed yet, so they have no scale: "
                              "name a later checkpoint, written with observers on",
                              saved.prefix, name));
}

}  // namespace lockstep::exports
