#include "base/bits/square_sum.h"

#include "base/bits/avx2.h"
#include "base/bits/square_sum_loop.h"

namespace lockstep {

#if defined(__x86_64__)

LOCKSTEP_SQUARE_SUM(LOCKSTEP_AVX2, avx2, Doubles4, Floats4)

#else

double avx2_square_sum(const float* items, int64_t num_items) {
  return portable_square_sum(items, num_items);
}

#endif

}  // namespace lockstep
