#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "base/bits/square_sum.h"

/// Loop of square_sum(), compiled by every path with its own instructions.
namespace lockstep::square_sums {

/// Sums the squares of arrays of equal length in one loop, because independent sums hide the
/// latency of the additions. `Wide` is a vector of doubles, `Narrow` one of as many items.
template <typename Wide, typename Narrow, size_t num_arrays>
__attribute__((always_inline)) inline std::array<double, num_arrays> sums(
    const std::array<const float*, num_arrays>& arrays, int64_t num_items) {
  constexpr int64_t kLanes = sizeof(Wide) / sizeof(double);
  std::array<std::array<Wide, kSquareAccumulators / kLanes>, num_arrays> wide_sums{};
  int64_t i = 0;
  for (; i + kSquareAccumulators <= num_items; i += kSquareAccumulators)
    for (size_t array = 0; array < num_arrays; ++array)
      for (int64_t part = 0; part < kSquareAccumulators / kLanes; ++part) {
        Narrow narrow;
        std::memcpy(&narrow, arrays[array] + i + part * kLanes, sizeof narrow);
        const Wide wide = __builtin_convertvector(narrow, Wide);
        wide_sums[array][part] += wide * wide;
      }
  std::array<double, num_arrays> totals{};
  for (size_t array = 0; array < num_arrays; ++array) {
    SquareAccumulators each{};
    std::memcpy(each.data(), wide_sums[array].data(), sizeof each);
    for (int64_t rest = i; rest < num_items; ++rest) {
      const auto item = static_cast<double>(arrays[array][rest]);
      each[static_cast<size_t>(rest - i)] += item * item;
    }
    totals[array] = sum_of(each);
  }
  return totals;
}

using Floats2 = float __attribute__((vector_size(8)));
using Floats4 = float __attribute__((vector_size(16)));
using Floats8 = float __attribute__((vector_size(32)));
using Doubles2 = double __attribute__((vector_size(16)));
using Doubles4 = double __attribute__((vector_size(32)));
using Doubles8 = double __attribute__((vector_size(64)));

}  // namespace lockstep::square_sums

/// Defines the functions of one path; `target` is the attribute of its functions.
// NOLINTBEGIN(bugprone-macro-parentheses): an attribute takes no parentheses around it
#define LOCKSTEP_SQUARE_SUMS(target, path, Wide, Narrow)                                        \
  target double path##_square_sum(const float* items, int64_t num_items) {                      \
    return square_sums::sums<square_sums::Wide, square_sums::Narrow, 1>({items}, num_items)[0]; \
  }                                                                                             \
  target SquareSums path##_square_sums(const float* first, const float* second,                 \
                                       int64_t num_items) {                                     \
    return square_sums::sums<square_sums::Wide, square_sums::Narrow, 2>({first, second},        \
                                                                        num_items);             \
  }
// NOLINTEND(bugprone-macro-parentheses)
