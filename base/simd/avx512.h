#pragma once

#if defined(__x86_64__)

#include <cstdint>

#include <immintrin.h>

/// Attribute of functions for the path SimdPath::kAvx512. Only sources whose names end in _avx512
/// include this header. A table of kernels leads to them, and only on machines with these
/// instructions.
#define LOCKSTEP_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,bmi,bmi2,popcnt")))

namespace lockstep::avx512 {

/// Vectors of 512 bits with items of one width. Mask has a bit for each of its kNum lanes.
template <typename Item>
struct Lanes;

template <>
struct Lanes<uint16_t> {
  static constexpr int kNum = 32;
  using Mask = __mmask32;
  LOCKSTEP_AVX512 static __m512i all(uint16_t x) {
    return _mm512_set1_epi16(static_cast<int16_t>(x));
  }
  LOCKSTEP_AVX512 static __m512i load(Mask k, const void* p) {
    return _mm512_maskz_loadu_epi16(k, p);
  }
  LOCKSTEP_AVX512 static void store(void* p, Mask k, __m512i v) {
    _mm512_mask_storeu_epi16(p, k, v);
  }
  LOCKSTEP_AVX512 static __m512i compress(Mask k, __m512i v) {
    return _mm512_maskz_compress_epi16(k, v);
  }
  LOCKSTEP_AVX512 static __m512i expand(Mask k, __m512i v) {
    return _mm512_maskz_expand_epi16(k, v);
  }
  LOCKSTEP_AVX512 static __m512i sub(__m512i a, __m512i b) { return _mm512_sub_epi16(a, b); }
  LOCKSTEP_AVX512 static Mask test(__m512i a, __m512i b) { return _mm512_test_epi16_mask(a, b); }
  LOCKSTEP_AVX512 static Mask equal(Mask k, __m512i a, __m512i b) {
    return _mm512_mask_cmpeq_epu16_mask(k, a, b);
  }
  LOCKSTEP_AVX512 static Mask less(Mask k, __m512i a, __m512i b) {
    return _mm512_mask_cmplt_epu16_mask(k, a, b);
  }
};

template <>
struct Lanes<uint32_t> {
  static constexpr int kNum = 16;
  using Mask = __mmask16;
  LOCKSTEP_AVX512 static __m512i all(uint32_t x) {
    return _mm512_set1_epi32(static_cast<int32_t>(x));
  }
  LOCKSTEP_AVX512 static __m512i load(Mask k, const void* p) {
    return _mm512_maskz_loadu_epi32(k, p);
  }
  LOCKSTEP_AVX512 static void store(void* p, Mask k, __m512i v) {
    _mm512_mask_storeu_epi32(p, k, v);
  }
  LOCKSTEP_AVX512 static __m512i compress(Mask k, __m512i v) {
    return _mm512_maskz_compress_epi32(k, v);
  }
  LOCKSTEP_AVX512 static __m512i expand(Mask k, __m512i v) {
    return _mm512_maskz_expand_epi32(k, v);
  }
  LOCKSTEP_AVX512 static __m512i sub(__m512i a, __m512i b) { return _mm512_sub_epi32(a, b); }
  LOCKSTEP_AVX512 static Mask test(__m512i a, __m512i b) { return _mm512_test_epi32_mask(a, b); }
  LOCKSTEP_AVX512 static Mask equal(Mask k, __m512i a, __m512i b) {
    return _mm512_mask_cmpeq_epu32_mask(k, a, b);
  }
  LOCKSTEP_AVX512 static Mask less(Mask k, __m512i a, __m512i b) {
    return _mm512_mask_cmplt_epu32_mask(k, a, b);
  }
};

template <>
struct Lanes<uint64_t> {
  static constexpr int kNum = 8;
  using Mask = __mmask8;
  LOCKSTEP_AVX512 static __m512i all(uint64_t x) {
    return _mm512_set1_epi64(static_cast<int64_t>(x));
  }
  LOCKSTEP_AVX512 static __m512i load(Mask k, const void* p) {
    return _mm512_maskz_loadu_epi64(k, p);
  }
  LOCKSTEP_AVX512 static void store(void* p, Mask k, __m512i v) {
    _mm512_mask_storeu_epi64(p, k, v);
  }
  LOCKSTEP_AVX512 static __m512i compress(Mask k, __m512i v) {
    return _mm512_maskz_compress_epi64(k, v);
  }
  LOCKSTEP_AVX512 static __m512i expand(Mask k, __m512i v) {
    return _mm512_maskz_expand_epi64(k, v);
  }
  LOCKSTEP_AVX512 static __m512i sub(__m512i a, __m512i b) { return _mm512_sub_epi64(a, b); }
  LOCKSTEP_AVX512 static Mask test(__m512i a, __m512i b) { return _mm512_test_epi64_mask(a, b); }
  LOCKSTEP_AVX512 static Mask equal(Mask k, __m512i a, __m512i b) {
    return _mm512_mask_cmpeq_epu64_mask(k, a, b);
  }
  LOCKSTEP_AVX512 static Mask less(Mask k, __m512i a, __m512i b) {
    return _mm512_mask_cmplt_epu64_mask(k, a, b);
  }
};

/// Returns the bits of one vector of the word, from its item `lane` on.
template <typename Item>
LOCKSTEP_AVX512 inline typename Lanes<Item>::Mask part_of(uint64_t word, int lane) {
  return static_cast<typename Lanes<Item>::Mask>(word >> lane);
}

/// Returns a mask of the first `num` lanes.
template <typename Item>
LOCKSTEP_AVX512 inline typename Lanes<Item>::Mask first_lanes(int num) {
  return static_cast<typename Lanes<Item>::Mask>(_bzhi_u64(~0ULL, static_cast<unsigned>(num)));
}

}  // namespace lockstep::avx512

#endif
