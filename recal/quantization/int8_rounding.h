#pragma once

#include <ATen/core/Tensor.h>

#include "recal/quantization/int8_scales.h"

/// Rounding to int8 values in the forward pass. The bits equal those of ATen's fake_quantize_*,
/// which computes element by element. Contiguous float32 tensors on the CPU use kernels of this
/// folder, all others use ATen.
///
/// Non-finite values become NaN, while ATen would turn them into numbers: rounding must not hide an
/// overflow.
namespace lockstep::recal {

/// Computes scale * (q - zero_point) for each element, q within [0, 255]. The gradient passes
/// straight through where q was in that range before limiting, and is 0 elsewhere.
at::Tensor round_input(const at::Tensor& input, InputScale by);

/// Computes scale * q for each weight. `scales` must come from weight_scales() for this weight. So
/// no weight is outside the range, and the gradient passes straight through everywhere.
at::Tensor round_weight(const at::Tensor& weight_OX, const at::Tensor& scales);

}  // namespace lockstep::recal
