#pragma once

#include <array>
#include <cstdint>
#include <cstring>

/// The loop of square_sum(), which every path compiles with its own instructions.
namespace lockstep::square_sums {

constexpr int64_t kAccumulators = 16;

/// `Wide`: a vector of doubles; `Narrow`: of as many items.
template <typename Wide, typename Narrow>
__attribute__((always_inline)) inline double sum(const float* items, int64_t num_items) {
  constexpr int64_t kLanes = sizeof(Wide) / sizeof(double);
  std::array<Wide, kAccumulators / kLanes> sums{};
  int64_t i = 0;
  for (; i + kAccumulators <= num_items; i += kAccumulators)
    for (int64_t part = 0; part < kAccumulators / kLanes; ++part) {
      Narrow narrow;
      std::memcpy(&narrow, items + i + part * kLanes, sizeof narrow);
      const Wide wide = __builtin_convertvector(narrow, Wide);
      sums[part] += wide * wide;
    }
  std::array<double, kAccumulators> each{};
  std::memcpy(each.data(), sums.data(), sizeof each);
  for (size_t place = 0; i < num_items; ++i, ++place) {
    const auto item = static_cast<double>(items[i]);
    each[place] += item * item;
  }
  for (size_t half = kAccumulators / 2; half > 0; half /= 2)
    for (size_t place = 0; place < half; ++place) each[place] += each[place + half];
  return each[0];
}

using Floats2 = float __attribute__((vector_size(8)));
using Floats4 = float __attribute__((vector_size(16)));
using Floats8 = float __attribute__((vector_size(32)));
using Doubles2 = double __attribute__((vector_size(16)));
using Doubles4 = double __attribute__((vector_size(32)));
using Doubles8 = double __attribute__((vector_size(64)));

}  // namespace lockstep::square_sums
