#include "daemon/exports/portable_quantization.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "base/error.h"
#include "recal/quantization/int8_scales.h"

// The scales come from the same functions that fake quantization used in training, so exported
// networks round alike.
namespace lockstep::daemon {

void add_quantization(const SavedModel& saved, PortableNetwork* network) {
  for (const auto& [name, layer] : saved.layers) {
    const at::Tensor& weight = saved.params.at(name + ".weight").values;
    QuantizedLayer made;
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
    network->quantized.emplace(name, std::move(made));
  }
}

void require_quantized(const SavedModel& saved) {
  if (saved.layers.empty())
    throw Error(ExitCode::kUsage, "export",
                saved.prefix +
                    ": no layer of it is quantized: name a save that was made after a "
                    "!QuantizationModifier began, or leave --quantize out");
  for (const auto& [name, layer] : saved.layers)
    if (layer.input_range.num_observations == 0)
      throw Error(ExitCode::kUsage, "export",
                  fmt::format("{}: the inputs of {} were not observed yet, so they have no scale: "
                              "name a later save, one made with observers on",
                              saved.prefix, name));
}

}  // namespace lockstep::daemon
