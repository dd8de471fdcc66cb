// The paths are instances of one loop, square_sums::sum(), so they add in the same order.
#include "base/simd/square_sum.h"

namespace lockstep {

LOCKSTEP_SQUARE_SUM(, portable, Doubles2, Floats2)

double square_sum(const float* items, int64_t num_items, SimdPath path) {
  switch (path) {
    case SimdPath::kAvx512:
      return avx512_square_sum(items, num_items);
    case SimdPath::kAvx2:
      return avx2_square_sum(items, num_items);
    default:
      return portable_square_sum(items, num_items);
  }
}

}  // namespace lockstep
