// AVX2 path: eight floats at a time, without FMA, so that the bits equal the portable path's.
#include "data/images/pixel_loops.h"

#include "base/simd/avx2.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep::data {

#if defined(__x86_64__)

namespace {

LOCKSTEP_PIXEL_KERNELS(LOCKSTEP_AVX2, pixel_loops::Eight)

/// Converts eight bytes to floats. g++ 12 needs ten instructions for it, these are two.
LOCKSTEP_AVX2 inline __m256 floats_of(const uint8_t* bytes) {
  const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes));
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight));
}

/// Converts and scales eight bytes.
LOCKSTEP_AVX2 inline __m256 scaled(const uint8_t* bytes, __m256 factor, __m256 addend) {
  return _mm256_add_ps(_mm256_mul_ps(floats_of(bytes), factor), addend);
}

LOCKSTEP_AVX2 void scale(const uint8_t* in, int64_t num, float by, float shift, float* out) {
  const __m256 factor = _mm256_set1_ps(by), addend = _mm256_set1_ps(shift);
  int64_t i = 0;
  for (; i + 8 <= num; i += 8) _mm256_storeu_ps(out + i, scaled(in + i, factor, addend));
  pixel_loops::scale(in, i, num, by, shift, out);
}

LOCKSTEP_AVX2 void scale_in_turn(const uint8_t* in, int64_t num, const ChannelNumbers& by,
                                 float* out) {
  __m256 factors[3], addends[3];
  for (int part = 0; part < 3; ++part) {
    factors[part] = _mm256_load_ps(by.scales.data() + 8 * part);
    addends[part] = _mm256_load_ps(by.shifts.data() + 8 * part);
  }
  int64_t i = 0;
  for (; i + 24 <= num; i += 24)
    for (int part = 0; part < 3; ++part)
      _mm256_storeu_ps(out + i + 8 * part, scaled(in + i + 8 * part, factors[part], addends[part]));
  pixel_loops::scale_rest(in + i, num - i, by, out + i);
}

LOCKSTEP_AVX2 void columns_3(const float* in, const Taps& taps, int64_t num_out,
                             float* const* outs) {
  pixel_loops::columns_3(in, taps, 0, num_out, outs);
}

}  // namespace

const PixelKernels& avx2_pixel_kernels() {
  static constexpr PixelKernels kKernels{scale,      scale_in_turn, scale_3,
                                         blend_rows, columns_1,     columns_3};
  return kKernels;
}

#else

const PixelKernels& avx2_pixel_kernels() { return portable_pixel_kernels(); }

#endif

}  // namespace lockstep::data
