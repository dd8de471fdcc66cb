#include "base/bits/square_sum.h"

#include "base/bits/square_sum_loop.h"

namespace lockstep {

double square_sum(const float* items, int64_t num_items, SimdPath path) {
  switch (path) {
    case SimdPath::kAvx512:
      return avx512_square_sum(items, num_items);
    case SimdPath::kAvx2:
      return avx2_square_sum(items, num_items);
    case SimdPath::kPortable:
      break;
  }
  return portable_square_sum(items, num_items);
}

double portable_square_sum(const float* items, int64_t num_items) {
  return square_sums::sum<square_sums::Doubles2, square_sums::Floats2>(items, num_items);
}

}  // namespace lockstep
