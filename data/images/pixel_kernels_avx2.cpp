#include "data/images/pixel_loops.h"

#include "base/bits/avx2.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep::data {

#if defined(__x86_64__)

namespace {

LOCKSTEP_PIXEL_KERNELS(LOCKSTEP_AVX2)

/// g++ 12 makes eight floats of eight bytes in ten instructions; these are two.
LOCKSTEP_AVX2 inline __m256 times(const uint8_t* bytes, __m256 weight) {
  const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes));
  return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight)), weight);
}

LOCKSTEP_AVX2 void add_rows(const uint8_t* const* rows, const float* weights, int64_t num,
                            bool adds, float* out) {
  const uint8_t *p = rows[0], *q = rows[1], *r = rows[2], *s = rows[3];
  const __m256 wp = _mm256_set1_ps(weights[0]), wq = _mm256_set1_ps(weights[1]);
  const __m256 wr = _mm256_set1_ps(weights[2]), ws = _mm256_set1_ps(weights[3]);
  int64_t i = 0;
  for (; i + 8 <= num; i += 8) {
    __m256 sum = _mm256_add_ps(_mm256_add_ps(times(p + i, wp), times(q + i, wq)),
                               _mm256_add_ps(times(r + i, wr), times(s + i, ws)));
    if (adds) sum = _mm256_add_ps(_mm256_loadu_ps(out + i), sum);
    _mm256_storeu_ps(out + i, sum);
  }
  pixel_loops::add_rows(rows, weights, i, num, adds, out);
}

}  // namespace

const PixelKernels& avx2_pixel_kernels() {
  static constexpr PixelKernels kKernels{scale, scale_3, add_rows, columns_1, columns_3};
  return kKernels;
}

#else

const PixelKernels& avx2_pixel_kernels() { return portable_pixel_kernels(); }

#endif

}  // namespace lockstep::data
