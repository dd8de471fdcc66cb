#pragma once

#include <cstdint>

namespace lockstep::recal {

/// Parameters of one rounding: q = round(item / scale) + zero_point, limited to [lowest, highest].
struct Rounding {
  float scale = 1;
  float zero_point = 0;  ///< an integer
  float lowest = 0, highest = 0;
};

/// Computes out = scale * (q - zero_point); NaN for non-finite items. Vector code, no branches.
void round_items(const float* items, int64_t num_items, const Rounding& rounding, float* out);
/// Computes the same, and sets inside = 1 if q was in the range before limiting, else 0.
void round_items(const float* items, int64_t num_items, const Rounding& rounding, float* out,
                 bool* inside);

/// Computes out = item * inside: 0 for limited items, NaN for non-finite ones that were limited.
void keep_inside(const float* items, const bool* inside, int64_t num_items, float* out);

}  // namespace lockstep::recal
