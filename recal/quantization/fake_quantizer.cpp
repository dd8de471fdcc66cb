#include "recal/quantization/fake_quantizer.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "base/tensors/params.h"
#include "recal/quantization/int8_rounding.h"

namespace lockstep::recal {
namespace {

std::vector<std::string> names_of(const std::vector<LayerInfo>& layers) {
  std::vector<std::string> names;
  for (const LayerInfo& layer : layers) names.push_back(layer.name);
  return names;
}

}  // namespace

FakeQuantizer::FakeQuantizer(const std::vector<LayerInfo>& layers)
    : layers_(layers),
      ranges_(names_of(layers)),
      schemes_L_(at::zeros({static_cast<int64_t>(layers.size())}, at::kLong)),
      weight_scales_L_(layers.size()) {}

void FakeQuantizer::configure(const std::vector<int64_t>& layers_on, bool per_output,
                              bool observers_on) {
  auto* schemes = schemes_L_.mutable_data_ptr<int64_t>();
  // Layers that are no longer listed are switched off.
  std::fill_n(schemes, num_layers(), static_cast<int64_t>(QuantizationScheme::kNone));
  for (const int64_t layer : layers_on) {
    check(0 <= layer && layer < num_layers(), "a layer to quantize is one of the model's");
    schemes[layer] = static_cast<int64_t>(per_output ? QuantizationScheme::kPerOutput
                                                     : QuantizationScheme::kPerTensor);
  }
  num_on_ = static_cast<int64_t>(layers_on.size());
  observers_on_ = observers_on;
}

QuantizationScheme FakeQuantizer::scheme(int64_t layer) const {
  return static_cast<QuantizationScheme>(schemes_L_.const_data_ptr<int64_t>()[layer]);
}

at::Tensor FakeQuantizer::input(int64_t layer, const at::Tensor& input) {
  if (scheme(layer) == QuantizationScheme::kNone || input.numel() == 0) return input;
  // Gradients are off in evaluation, whose data must not change the ranges.
  if (observers_on_ && at::GradMode::is_enabled()) ranges_.observe(layer, input);
  const InputRanges::Range range = ranges_.at(layer);
  // Until the first agreement there is no range that all ranks share.
  if (range.num_observations == 0) return input;
  return round_input(input, input_scale(range.min, range.max));
}

at::Tensor FakeQuantizer::weight(int64_t layer, const at::Tensor& weight) {
  if (scheme(layer) == QuantizationScheme::kNone) return weight;
  at::Tensor& scales = weight_scales_L_[static_cast<size_t>(layer)];
  // Kept for view(), which summaries read after the pass.
  scales = weight_scales(weight, scheme(layer) == QuantizationScheme::kPerOutput);
  return round_weight(weight, scales);
}

void FakeQuantizer::end_step(dist::Communicator& control, bool step_counted) {
  if (step_counted && observers_on_ && active()) {
    ranges_.agree(control);
  } else {
    ranges_.drop();
  }
}

StateList FakeQuantizer::state() const {
  StateList entries = ranges_.state();
  for (size_t l = 0; l < layers_.size(); ++l)
    entries.push_back({"_lockstep/quantization/" + slashed(layers_[l].name) + "/scheme",
                       schemes_L_.select(0, static_cast<int64_t>(l)), nullptr, 0.0});
  return entries;
}

FakeQuantizer::LayerView FakeQuantizer::view(int64_t layer) const {
  const InputRanges::Range range = ranges_.at(layer);
  const auto l = static_cast<size_t>(layer);
  return {layers_[l].name, scheme(layer), range, input_scale(range.min, range.max),
          weight_scales_L_[l]};
}

}  // namespace lockstep::recal
