#include "recal/quantization/fake_quantizer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"

// Ranges of layer inputs, and fake quantization by these ranges.
namespace lockstep::recal {
namespace {

// Weight of a new observation: averaging_constant of PyTorch's MovingAverageMinMaxObserver.
constexpr float kAveraging = 0.01F;

float moved(float average, float observed, bool first) {
  return first ? observed : average + kAveraging * (observed - average);
}

std::vector<std::string> names_of(const std::vector<LayerInfo>& layers) {
  std::vector<std::string> names;
  for (const LayerInfo& layer : layers) names.push_back(layer.name);
  return names;
}

}  // namespace

InputRanges::InputRanges(std::vector<std::string> names)
    : names_(std::move(names)), pending_L_(names_.size()) {
  const auto num_layers = static_cast<int64_t>(names_.size());
  min_L_ = at::zeros({num_layers}, at::kFloat);
  max_L_ = at::zeros({num_layers}, at::kFloat);
  num_observations_L_ = at::zeros({num_layers}, at::kLong);
}

InputRanges::Range InputRanges::at(int64_t layer) const {
  return {min_L_.const_data_ptr<float>()[layer], max_L_.const_data_ptr<float>()[layer],
          num_observations_L_.const_data_ptr<int64_t>()[layer]};
}

void InputRanges::observe(int64_t layer, const at::Tensor& input) {
  const at::NoGradGuard no_grad;
  // Stays on the device: reading the values here would stop the host in every forward pass.
  const auto [min, max] = at::aminmax(input.detach());
  Extremes& pending = pending_L_[static_cast<size_t>(layer)];
  if (!pending.min.defined()) {
    pending = {min, max};
  } else {
    pending = {at::minimum(pending.min, min), at::maximum(pending.max, max)};
  }
}

void InputRanges::agree(dist::Communicator& control) {
  const auto num_layers = static_cast<int64_t>(names_.size());
  const at::Tensor bounds_2L =  // negated minima: one all-reduce (max) joins both
      at::full({2 * num_layers}, -std::numeric_limits<float>::infinity(), at::kFloat);
  auto* negated_min = bounds_2L.mutable_data_ptr<float>();
  float* max = negated_min + num_layers;
  for (int64_t l = 0; l < num_layers; ++l) {
    const Extremes& pending = pending_L_[static_cast<size_t>(l)];
    if (!pending.min.defined()) continue;
    // item() waits for the device. Once per step here, instead of once per forward pass.
    negated_min[l] = -pending.min.item<float>();
    max[l] = pending.max.item<float>();
  }
  // Dropped before the collective: if it throws, old values must not enter the next step.
  drop();
  control.all_reduce(bounds_2L, dist::ReduceOp::kMax)->wait();
  bounds_2L_ = bounds_2L;
}

void InputRanges::take() {
  const auto num_layers = static_cast<int64_t>(names_.size());
  const at::Tensor bounds_2L = std::exchange(bounds_2L_, {});
  const auto* negated_min = bounds_2L.const_data_ptr<float>();
  const float* max = negated_min + num_layers;
  auto* averages_min = min_L_.mutable_data_ptr<float>();
  auto* averages_max = max_L_.mutable_data_ptr<float>();
  auto* counts = num_observations_L_.mutable_data_ptr<int64_t>();
  for (int64_t l = 0; l < num_layers; ++l) {
    // Infinite here: no rank observed the layer (the initial value), or a value was not finite.
    if (!std::isfinite(negated_min[l]) || !std::isfinite(max[l])) continue;
    const bool first = counts[l]++ == 0;
    averages_min[l] = moved(averages_min[l], -negated_min[l], first);
    averages_max[l] = moved(averages_max[l], max[l], first);
  }
}

void InputRanges::drop() {
  for (Extremes& pending : pending_L_) pending = {};
  bounds_2L_ = at::Tensor();
}

StateList InputRanges::state() const {
  StateList entries;
  for (size_t l = 0; l < names_.size(); ++l) {
    const std::string folder = "_lockstep/quantization/" + slashed(names_[l]);
    const auto item = [&](const at::Tensor& values_L) {
      return values_L.select(0, static_cast<int64_t>(l));
    };
    entries.push_back({folder + "/input_min", item(min_L_), nullptr, 0.0});
    entries.push_back({folder + "/input_max", item(max_L_), nullptr, 0.0});
    entries.push_back({folder + "/observations", item(num_observations_L_), nullptr, 0.0});
  }
  return entries;
}

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

void FakeQuantizer::agree(dist::Communicator& control) {
  if (observers_on_ && active()) ranges_.agree(control);
}

void FakeQuantizer::end_step(dist::Communicator& control, bool step_counted) {
  if (!step_counted || !observers_on_ || !active()) return ranges_.drop();
  if (!ranges_.are_agreed()) ranges_.agree(control);
  ranges_.take();
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
