#include "base/simd/square_sum.h"

#include "base/simd/avx2.h"

namespace lockstep {

#if defined(__x86_64__)

LOCKSTEP_SQUARE_SUM(LOCKSTEP_AVX2, avx2, Doubles4, Floats4)

#else

double avx2_square_sum(const float* items, int64_t num_items) {
  return portable_square_sum(items, num_items);
}

#endif

}  // namespace lockstep
