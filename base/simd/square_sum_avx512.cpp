#include "base/simd/square_sum.h"

#include "base/simd/avx512.h"

namespace lockstep {

#if defined(__x86_64__)

LOCKSTEP_SQUARE_SUM(LOCKSTEP_AVX512, avx512, Doubles8, Floats8)

#else

double avx512_square_sum(const float* items, int64_t num_items) {
  return portable_square_sum(items, num_items);
}

#endif

}  // namespace lockstep
