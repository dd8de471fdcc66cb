#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::dist {

/// Gradients [K] of a wider float type into the type of a message and back.

/// wire_K = values_K * scale, rounded to nearest; scale is a power of two. Returns the largest
/// magnitude of what was rounded, divided by scale again: a 0-dimensional float64 tensor on the
/// gradients' device, infinite if a rounded one is not finite. errors_K, where defined, becomes
/// values_K - wire_K / scale, which is exact but for numbers too small for the gradients' type; CPU
/// only.
at::Tensor round_to_wire(const at::Tensor& values_K, double scale, const at::Tensor& wire_K,
                         const at::Tensor& errors_K = {});

/// values_K = wire_K / scale.
void widen_from_wire(const at::Tensor& wire_K, double scale, const at::Tensor& values_K);

/// The largest magnitude, as round_to_wire() gives it, of what is not rounded yet; 0 of none.
at::Tensor largest_magnitude(const at::Tensor& values_K);

}  // namespace lockstep::dist
