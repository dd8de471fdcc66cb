#pragma once

#if defined(__x86_64__)

#include <cstdint>

#include <immintrin.h>

/// Attribute of functions for the path SimdPath::kAvx2; see base/simd/avx512.h.
#define LOCKSTEP_AVX2 __attribute__((target("avx2,bmi,bmi2,popcnt")))

namespace lockstep::avx2 {

/// Vectors of 256 bits with items of one width. A truth is a vector whose lanes have all bits set
/// or none. `bits` have one bit per lane.
template <typename Item>
struct Lanes;

template <>
struct Lanes<uint16_t> {
  static constexpr int kNum = 16;
  LOCKSTEP_AVX2 static __m256i all(uint16_t x) {
    return _mm256_set1_epi16(static_cast<int16_t>(x));
  }
  LOCKSTEP_AVX2 static __m256i greater(__m256i a, __m256i b) { return _mm256_cmpgt_epi16(a, b); }
  LOCKSTEP_AVX2 static __m256i equal(__m256i a, __m256i b) { return _mm256_cmpeq_epi16(a, b); }
  LOCKSTEP_AVX2 static uint64_t bits_of(__m256i truths) {
    const __m256i bytes = _mm256_packs_epi16(truths, _mm256_setzero_si256());
    return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_permute4x64_epi64(bytes, 0xd8)));
  }
  LOCKSTEP_AVX2 static __m256i truths_of(uint64_t bits) {
    const __m256i lane_bits = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048,
                                                4096, 8192, 16384, static_cast<int16_t>(0x8000));
    return equal(_mm256_and_si256(all(static_cast<uint16_t>(bits)), lane_bits), lane_bits);
  }
};

template <>
struct Lanes<uint32_t> {
  static constexpr int kNum = 8;
  LOCKSTEP_AVX2 static __m256i all(uint32_t x) {
    return _mm256_set1_epi32(static_cast<int32_t>(x));
  }
  LOCKSTEP_AVX2 static __m256i greater(__m256i a, __m256i b) { return _mm256_cmpgt_epi32(a, b); }
  LOCKSTEP_AVX2 static __m256i equal(__m256i a, __m256i b) { return _mm256_cmpeq_epi32(a, b); }
  LOCKSTEP_AVX2 static uint64_t bits_of(__m256i truths) {
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(truths)));
  }
  LOCKSTEP_AVX2 static __m256i truths_of(uint64_t bits) {
    const __m256i lane_bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return equal(_mm256_and_si256(all(static_cast<uint32_t>(bits)), lane_bits), lane_bits);
  }
};

template <>
struct Lanes<uint64_t> {
  static constexpr int kNum = 4;
  LOCKSTEP_AVX2 static __m256i all(uint64_t x) {
    return _mm256_set1_epi64x(static_cast<int64_t>(x));
  }
  LOCKSTEP_AVX2 static __m256i greater(__m256i a, __m256i b) { return _mm256_cmpgt_epi64(a, b); }
  LOCKSTEP_AVX2 static __m256i equal(__m256i a, __m256i b) { return _mm256_cmpeq_epi64(a, b); }
  LOCKSTEP_AVX2 static uint64_t bits_of(__m256i truths) {
    return static_cast<uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(truths)));
  }
  LOCKSTEP_AVX2 static __m256i truths_of(uint64_t bits) {
    const __m256i lane_bits = _mm256_setr_epi64x(1, 2, 4, 8);
    return equal(_mm256_and_si256(all(bits), lane_bits), lane_bits);
  }
};

LOCKSTEP_AVX2 inline __m256i load(const void* items) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(items));
}
LOCKSTEP_AVX2 inline void store(void* items, __m256i v) {
  _mm256_storeu_si256(static_cast<__m256i*>(items), v);
}

}  // namespace lockstep::avx2

#endif
