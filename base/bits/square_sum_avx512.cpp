#include "base/bits/square_sum.h"

#include "base/bits/avx512.h"
#include "base/bits/square_sum_loop.h"

namespace lockstep {

#if defined(__x86_64__)

LOCKSTEP_AVX512 double avx512_square_sum(const float* items, int64_t num_items) {
  return square_sums::sum<square_sums::Doubles8, square_sums::Floats8>(items, num_items);
}

#else

double avx512_square_sum(const float* items, int64_t num_items) {
  return portable_square_sum(items, num_items);
}

#endif

}  // namespace lockstep
