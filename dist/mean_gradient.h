#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace lockstep::dist {

/// Divides each item of sums_E by num_samples, in place, and tells whether all results are finite.
/// One pass on the CPU, which only reads where num_samples is 1; on a GPU the host waits for the
/// answer. 16-bit floats are divided in float32. float32, float64, bfloat16, float16; num_samples >
/// 0. The same bits give the same result on every rank.
bool divide_and_check(const at::Tensor& sums_E, int64_t num_samples);

}  // namespace lockstep::dist
