#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dist/communicator.h"

namespace lockstep::dist {

/// Divides each item of sums_E by num_samples, in place, and tells whether all results are finite.
/// One pass on the CPU, which only reads where num_samples is 1; on a device it only divides and
/// returns true, and largest_of_all() tells for many tensors at once. 16-bit floats are divided
/// in float32. float32, float64, bfloat16, float16; num_samples > 0. The same bits give the same
/// result on every rank.
bool divide_and_check(const at::Tensor& sums_E, int64_t num_samples);
/// The same of items that stand in memory.
bool divide_and_check(void* sums_E, int64_t num_items, at::ScalarType dtype, int64_t num_samples);

/// The largest magnitude of all items of all tensors, float [1] (float64 if some are) on `device`,
/// for which the host does not wait: finite if they all are, and not otherwise. Floats on that
/// device, any of which may be empty.
at::Tensor largest_of_all(at::Device device, const std::vector<at::Tensor>& tensors);

/// The largest magnitude of float32 items in one run on the CPU: infinite if one is not finite, 0
/// of none. One pass that makes no tensor.
double largest_magnitude(const at::Tensor& values_E);

}  // namespace lockstep::dist
