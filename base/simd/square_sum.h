#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

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

double portable_square_sum(const float* items, int64_t num_items);
double avx2_square_sum(const float* items, int64_t num_items);
double avx512_square_sum(const float* items, int64_t num_items);

}  // namespace lockstep

/// Loop of square_sum(), compiled by every path with its own instructions.
namespace lockstep::square_sums {

/// Sums the squares of an array. `Wide` is a vector of doubles, `Narrow` one of as many items.
template <typename Wide, typename Narrow>
__attribute__((always_inline)) inline double sum(const float* items, int64_t num_items) {
  constexpr int64_t kLanes = sizeof(Wide) / sizeof(double);
  std::array<Wide, kSquareAccumulators / kLanes> wide_sums{};
  int64_t i = 0;
  for (; i + kSquareAccumulators <= num_items; i += kSquareAccumulators)
    for (int64_t part = 0; part < kSquareAccumulators / kLanes; ++part) {
      Narrow narrow;
      std::memcpy(&narrow, items + i + part * kLanes, sizeof narrow);
      const Wide wide = __builtin_convertvector(narrow, Wide);
      wide_sums[part] += wide * wide;
    }
  SquareAccumulators each{};
  std::memcpy(each.data(), wide_sums.data(), sizeof each);
  for (int64_t rest = i; rest < num_items; ++rest) {
    const auto item = static_cast<double>(items[rest]);
    each[static_cast<size_t>(rest - i)] += item * item;
  }
  return sum_of(each);
}

using Floats2 = float __attribute__((vector_size(8)));
using Floats4 = float __attribute__((vector_size(16)));
using Floats8 = float __attribute__((vector_size(32)));
using Doubles2 = double __attribute__((vector_size(16)));
using Doubles4 = double __attribute__((vector_size(32)));
using Doubles8 = double __attribute__((vector_size(64)));

}  // namespace lockstep::square_sums

/// Defines the function of one path; `target` is its attribute.
// NOLINTBEGIN(bugprone-macro-parentheses): an attribute takes no parentheses around it
#define LOCKSTEP_SQUARE_SUM(target, path, Wide, Narrow)                                \
  target double path##_square_sum(const float* items, int64_t num_items) {             \
    return square_sums::sum<square_sums::Wide, square_sums::Narrow>(items, num_items); \
  }
// NOLINTEND(bugprone-macro-parentheses)
