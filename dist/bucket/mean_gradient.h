#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dist/communicator.h"

namespace lockstep::dist {

/// Divides each item of sums_E by num_samples, in place, and returns true if all results are
/// finite. One pass on the CPU, read-only if num_samples is 1. On a device it only divides and
/// returns true; largest_of_all() then checks many tensors at once. 16-bit floats are divided in
/// float32. float32, float64, bfloat16, float16; num_samples > 0. The same bits give the same
/// result on every rank.
bool divide_and_check(const at::Tensor& sums_E, int64_t num_samples);
/// Divides and checks items in raw memory.
bool divide_and_check(void* sums_E, int64_t num_items, at::ScalarType dtype, int64_t num_samples);

/// Returns the largest magnitude of all items of all tensors, float [1] (float64 if some are) on
/// `device`. The host does not wait. The result is finite exactly if all items are. The tensors are
/// floats on that device; any of them may be empty.
at::Tensor largest_of_all(at::Device device, const std::vector<at::Tensor>& tensors);

/// Returns the largest magnitude of contiguous float32 items on the CPU: infinite if one is not
/// finite, 0 for none. One pass that allocates no tensor.
double largest_magnitude(const at::Tensor& values_E);

}  // namespace lockstep::dist
