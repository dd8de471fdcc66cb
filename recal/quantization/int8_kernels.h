#pragma once

#include <cstdint>

namespace lockstep::recal {

/// One rounding: q = round(item / scale) + zero_point, cut to [lowest, highest].
struct Rounding {
  float scale = 1;
  float zero_point = 0;  ///< a whole number
  float lowest = 0, highest = 0;
};

/// out = scale * (q - zero_point); NaN where an item is not finite. Vector code, no branches.
void round_items(const float* items, int64_t num_items, const Rounding& rounding, float* out);
/// The same, and inside = 1 where q needed no cut, else 0.
void round_items(const float* items, int64_t num_items, const Rounding& rounding, float* out,
                 bool* inside);

/// out = item * inside: 0 where an item was cut, NaN where it was and is not finite.
void keep_inside(const float* items, const bool* inside, int64_t num_items, float* out);

}  // namespace lockstep::recal
