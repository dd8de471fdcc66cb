#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/simd/simd.h"

/// Sum of the squares of floats, with the same bits on every SIMD path.
namespace lockstep {

/// Number of parallel accumulators: item i is added to accumulator i % 16.
inline constexpr int64_t kSquareAccumulators = 16;
using SquareAccumulators = std::array<double, kSquareAccumulators>;

/// Returns their sum: halves are added until one value is left.
inline double sum_of(SquareAccumulators sums) {
  for (size_t half = sums.size() / 2; half > 0; half /= 2)
    for (size_t place = 0; place < half; ++place) sums[place] += sums[place + half];
  return sums[0];
}

/// Returns the sum of the squares of floats in float64, in the order of SquareAccumulators. The
/// bits are the same on every path, because the square of a float32 is exact in float64.
///
///     square_sum(grads, num_grads)  // {3, 4}: 25
double square_sum(const float* items, int64_t num_items, SimdPath path = fastest_simd_path());

}  // namespace lockstep
