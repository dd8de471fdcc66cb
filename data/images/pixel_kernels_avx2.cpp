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
LOCKSTEP_AVX2 inline __m256 floats_of(const uint8_t* bytes) {
  const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes));
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight));
}

LOCKSTEP_AVX2 void scale(const uint8_t* in, int64_t num, float by, float shift, float* out) {
  const __m256 factor = _mm256_set1_ps(by), addend = _mm256_set1_ps(shift);
  int64_t i = 0;
  for (; i + 8 <= num; i += 8)
    _mm256_storeu_ps(out + i, _mm256_add_ps(_mm256_mul_ps(floats_of(in + i), factor), addend));
  pixel_loops::scale(in, i, num, by, shift, out);
}

}  // namespace

const PixelKernels& avx2_pixel_kernels() {
  static constexpr PixelKernels kKernels{scale, scale_3, blend_rows, columns_1, columns_3};
  return kKernels;
}

#else

const PixelKernels& avx2_pixel_kernels() { return portable_pixel_kernels(); }

#endif

}  // namespace lockstep::data
