#include "recal/quantization/input_ranges.h"

#include <cmath>
#include <limits>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/zeros.h>

#include "base/tensors/params.h"

namespace lockstep::recal {
namespace {

// Weight of a new observation: averaging_constant of PyTorch's MovingAverageMinMaxObserver.
constexpr float kAveraging = 0.01F;

float moved(float average, float observed, bool first) {
  return first ? observed : average + kAveraging * (observed - average);
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
  at::Tensor bounds_2L =  // -min of all layers, then max: one all-reduce (max) joins both
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

}  // namespace lockstep::recal
