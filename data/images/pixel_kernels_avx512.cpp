// AVX-512 path: sixteen floats at a time, without FMA, so that the bits equal the portable path's.
#include "data/images/pixel_loops.h"

#include "base/simd/avx512.h"

namespace lockstep::data {

#if defined(__x86_64__)

namespace {

LOCKSTEP_PIXEL_KERNELS(LOCKSTEP_AVX512, pixel_loops::Sixteen)

/// Mask of all lanes. The forms without a mask start from a vector that g++ 12 calls uninitialised.
constexpr __mmask16 kAllLanes = 0xFFFF;

/// Converts and scales sixteen bytes.
LOCKSTEP_AVX512 inline __m512 scaled(const uint8_t* bytes, __m512 factor, __m512 addend) {
  const __m128i sixteen = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
  const __m512 values =
      _mm512_maskz_cvtepi32_ps(kAllLanes, _mm512_maskz_cvtepu8_epi32(kAllLanes, sixteen));
  return _mm512_add_ps(_mm512_mul_ps(values, factor), addend);
}

LOCKSTEP_AVX512 void scale(const uint8_t* in, int64_t num, float by, float shift, float* out) {
  const __m512 factor = _mm512_set1_ps(by), addend = _mm512_set1_ps(shift);
  int64_t i = 0;
  for (; i + 16 <= num; i += 16) _mm512_storeu_ps(out + i, scaled(in + i, factor, addend));
  pixel_loops::scale(in, i, num, by, shift, out);
}

LOCKSTEP_AVX512 void scale_in_turn(const uint8_t* in, int64_t num, const ChannelNumbers& by,
                                   float* out) {
  __m512 factors[3], addends[3];
  for (int part = 0; part < 3; ++part) {
    factors[part] = _mm512_load_ps(by.scales.data() + 16 * part);
    addends[part] = _mm512_load_ps(by.shifts.data() + 16 * part);
  }
  int64_t i = 0;
  for (; i + ChannelNumbers::kNum <= num; i += ChannelNumbers::kNum)
    for (int part = 0; part < 3; ++part)
      _mm512_storeu_ps(out + i + 16 * part,
                       scaled(in + i + 16 * part, factors[part], addends[part]));
  pixel_loops::scale_rest(in + i, num - i, by, out + i);
}

/// Computes outputs x and x + 1, x even. Lanes 0 to 2 and 8 to 10 are sums over the first inputs of
/// the pairs. Lanes 3 to 5 and 11 to 13 are sums over the second ones.
LOCKSTEP_AVX512 inline __m512 halves_of_two(const float* in, const int32_t* firsts,
                                            const float* weights, int64_t num_pairs) {
  const float* const left = in + 3 * int64_t{firsts[0]};
  const float* const right = in + 3 * int64_t{firsts[1]};
  __m512 sum{};
  for (int64_t pair = 0; pair < num_pairs; ++pair) {
    const __m512 values =
        __builtin_shufflevector(_mm256_loadu_ps(left + 6 * pair), _mm256_loadu_ps(right + 6 * pair),
                                0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512 product = _mm512_mul_ps(values, _mm512_loadu_ps(weights + 16 * pair));
    sum = pair == 0 ? product : _mm512_add_ps(sum, product);
  }
  return sum;
}

/// Computes four outputs, each a b c, in lanes 0 to 11.
LOCKSTEP_AVX512 inline __m512 four_outputs(const float* in, const int32_t* firsts,
                                           const float* weights, int64_t num_pairs) {
  const __m512i firsts_of_pairs =
      _mm512_setr_epi32(0, 1, 2, 8, 9, 10, 16, 17, 18, 24, 25, 26, 0, 0, 0, 0);
  const __m512i seconds_of_pairs =
      _mm512_setr_epi32(3, 4, 5, 11, 12, 13, 19, 20, 21, 27, 28, 29, 0, 0, 0, 0);
  const __m512 left = halves_of_two(in, firsts, weights, num_pairs);
  const __m512 right = halves_of_two(in, firsts + 2, weights + 16 * num_pairs, num_pairs);
  return _mm512_add_ps(_mm512_permutex2var_ps(left, firsts_of_pairs, right),
                       _mm512_permutex2var_ps(left, seconds_of_pairs, right));
}

/// Returns channel c of two times four outputs.
LOCKSTEP_AVX512 inline __m256 channel_of(int c, __m512 left, __m512 right) {
  const __m512i lanes = _mm512_add_epi32(
      _mm512_setr_epi32(0, 3, 6, 9, 16, 19, 22, 25, 0, 0, 0, 0, 0, 0, 0, 0), _mm512_set1_epi32(c));
  const __m512 channel = _mm512_permutex2var_ps(left, lanes, right);
  return __builtin_shufflevector(channel, channel, 0, 1, 2, 3, 4, 5, 6, 7);
}

/// Computes columns of pixels with three channels, eight outputs at a time.
LOCKSTEP_AVX512 __attribute__((always_inline)) inline void columns_3_of(
    int64_t num_pairs, const float* in, const Taps& taps, int64_t num_out, float* const* outs) {
  const int32_t* firsts = taps.firsts.data();
  const float* weights = taps.pairs.data();
  int64_t x = 0;
  for (; x + 8 <= num_out; x += 8, firsts += 8, weights += 64 * num_pairs) {
    const __m512 left = four_outputs(in, firsts, weights, num_pairs);
    const __m512 right = four_outputs(in, firsts + 4, weights + 32 * num_pairs, num_pairs);
    for (int c = 0; c < 3; ++c) _mm256_storeu_ps(outs[c] + x, channel_of(c, left, right));
  }
  pixel_loops::columns_3(in, taps, x, num_out, outs);
}

/// Chooses a constant number of pairs if it is small, so that the compiler unrolls the loop.
LOCKSTEP_AVX512 void columns_3(const float* in, const Taps& taps, int64_t num_out,
                               float* const* outs) {
  switch (const int64_t num_pairs = taps.num_pairs()) {
    case 1:
      return columns_3_of(1, in, taps, num_out, outs);
    case 2:
      return columns_3_of(2, in, taps, num_out, outs);
    case 3:
      return columns_3_of(3, in, taps, num_out, outs);
    default:
      columns_3_of(num_pairs, in, taps, num_out, outs);
  }
}

}  // namespace

const PixelKernels& avx512_pixel_kernels() {
  static constexpr PixelKernels kKernels{scale,      scale_in_turn, scale_3,
                                         blend_rows, columns_1,     columns_3};
  return kKernels;
}

#else

const PixelKernels& avx512_pixel_kernels() { return portable_pixel_kernels(); }

#endif

}  // namespace lockstep::data
