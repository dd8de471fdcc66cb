#include "recal/quantization/int8_scales.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <ATen/core/grad_mode.h>

namespace lockstep::recal {
namespace {

/// Reshapes [O] to [O, 1, ...], so that it broadcasts over a weight. [1] for one scale.
at::Tensor beside(const at::Tensor& scales, const at::Tensor& weight_OX) {
  std::vector<int64_t> shape(static_cast<size_t>(weight_OX.dim()), 1);
  shape[0] = scales.numel();
  return scales.view(shape);
}

}  // namespace

InputScale input_scale(float min, float max) {
  // Zero must be in the range: it has to be exactly representable.
  min = std::min(min, 0.0F);
  max = std::max(max, 0.0F);
  const float scale = std::max((max - min) / static_cast<float>(kInputQuantMax), kSmallestScale);
  const float zero_point = -std::nearbyint(min / scale);
  return {scale,
          static_cast<int32_t>(std::clamp(zero_point, 0.0F, static_cast<float>(kInputQuantMax)))};
}

at::Tensor weight_scales(const at::Tensor& weight_OX, bool per_output) {
  const at::NoGradGuard no_grad;
  const at::Tensor rows = weight_OX.detach().reshape({per_output ? weight_OX.size(0) : 1, -1});
  return rows.abs().amax(1).to(at::kFloat).div_(kWeightQuantMax).clamp_min_(kSmallestScale);
}

at::Tensor quantize_weight(const at::Tensor& weight_OX, const at::Tensor& scales) {
  const at::NoGradGuard no_grad;
  // A product with the reciprocal, as in PyTorch: a quotient can round differently.
  return weight_OX.detach()
      .mul(beside(scales.reciprocal(), weight_OX))
      .round_()
      .clamp_(-kWeightQuantMax, kWeightQuantMax)
      .to(at::kChar);
}

}  // namespace lockstep::recal
