#pragma once

#include <array>
#include <cstdint>

#include "base/bits/simd.h"

namespace lockstep {

/// The sum of the squares of floats, in float64: item i goes to accumulator i % 16, the halves of
/// the accumulators are then added until one is left. The same bits on every path: the square of a
/// float32 is exact in float64.
double square_sum(const float* items, int64_t num_items, SimdPath path = fastest_simd_path());

using SquareSums = std::array<double, 2>;
/// Of two arrays of one length, the same bits as one by one.
SquareSums square_sums_of(const float* first, const float* second, int64_t num_items,
                          SimdPath path = fastest_simd_path());

double portable_square_sum(const float* items, int64_t num_items);
double avx2_square_sum(const float* items, int64_t num_items);
double avx512_square_sum(const float* items, int64_t num_items);
SquareSums portable_square_sums(const float* first, const float* second, int64_t num_items);
SquareSums avx2_square_sums(const float* first, const float* second, int64_t num_items);
SquareSums avx512_square_sums(const float* first, const float* second, int64_t num_items);

}  // namespace lockstep
