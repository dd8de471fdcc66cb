#pragma once

#include <ATen/core/Tensor.h>

#include "recal/quantization/int8_scales.h"

/// Rounding to what int8 can hold, as part of a forward pass. Bits are those of ATen's
/// fake_quantize_*, whose kernels compute item by item; contiguous float32 on the CPU has kernels
/// of its own here, anything else uses ATen's.
///
/// What is not finite becomes NaN, unlike in ATen, where it would become a number: a fault must
/// not hide behind the rounding.
namespace lockstep::recal {

/// scale * (q - zero_point) for each item, q within [0, 255]. The gradient passes straight through
/// where q lay in that range before it was cut, and is 0 elsewhere.
at::Tensor round_input(const at::Tensor& input, InputScale by);

/// scale * q for each weight. `scales` as weight_scales() gives them, of this very weight: so no
/// weight lies outside the range, and the gradient passes straight through everywhere.
at::Tensor round_weight(const at::Tensor& weight_OX, const at::Tensor& scales);

}  // namespace lockstep::recal
