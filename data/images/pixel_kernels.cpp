// Kernels of pixels, without contraction to FMA (lockstep_kernels() in CMake), so that all targets
// give the same bits. The compiler vectorises loops without Highway's operations.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "data/images/pixel_kernels.cpp"
#include "base/simd/targets.h"

#include "data/images/pixel_kernels.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/simd/lanes.h"

HWY_BEFORE_NAMESPACE();

namespace lockstep::data::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
namespace lanes = lockstep::HWY_NAMESPACE;

using Floats = lanes::Lanes<float>;
constexpr int64_t kLanes = lanes::kNumLanes<float>;

/// Converts and scales a vector of bytes.
HWY_INLINE hn::Vec<Floats> scaled(const uint8_t* bytes, hn::Vec<Floats> by, hn::Vec<Floats> shift) {
  const Floats floats;
  const auto narrow = hn::LoadU(hn::Rebind<uint8_t, Floats>(), bytes);
  const auto values = hn::ConvertTo(floats, hn::PromoteTo(hn::RebindToSigned<Floats>(), narrow));
  return hn::Add(hn::Mul(values, by), shift);
}

void scale(const uint8_t* in, int64_t num, float by, float shift, float* out) {
  const Floats floats;
  int64_t i = 0;
  for (; i + kLanes <= num; i += kLanes)
    hn::StoreU(scaled(in + i, hn::Set(floats, by), hn::Set(floats, shift)), floats, out + i);
  for (; i < num; ++i) out[i] = static_cast<float>(in[i]) * by + shift;
}

void scale_in_turn(const uint8_t* in, int64_t num, const ChannelNumbers& by_, float* out) {
  const ChannelNumbers by = by_;  // a copy, which no store below can change
  constexpr int64_t kStep = ChannelNumbers::kNum;
  const Floats floats;
  int64_t i = 0;
  for (; lanes::kHasVectors && i + kStep <= num; i += kStep)
    for (int64_t part = 0; part < kStep; part += kLanes)
      hn::StoreU(scaled(in + i + part, hn::LoadU(floats, by.scales.data() + part),
                        hn::LoadU(floats, by.shifts.data() + part)),
                 floats, out + i + part);
  for (; i < num; i += kStep)
    for (int64_t rest = 0; rest < std::min(kStep, num - i); ++rest)
      out[i + rest] = static_cast<float>(in[i + rest]) * by.scales[static_cast<size_t>(rest)] +
                      by.shifts[static_cast<size_t>(rest)];
}

void scale_3(const uint8_t* __restrict in, int64_t num_pixels, const float* scales,
             const float* shifts, float* const* outs) {
  float* __restrict a = outs[0], * __restrict b = outs[1], * __restrict c = outs[2];
  const float scale_a = scales[0], scale_b = scales[1], scale_c = scales[2];
  const float shift_a = shifts[0], shift_b = shifts[1], shift_c = shifts[2];
  for (int64_t i = 0; i < num_pixels; ++i) {
    a[i] = static_cast<float>(in[3 * i]) * scale_a + shift_a;
    b[i] = static_cast<float>(in[3 * i + 1]) * scale_b + shift_b;
    c[i] = static_cast<float>(in[3 * i + 2]) * scale_c + shift_c;
  }
}

/// Calls function with the number as a constant if it is at most kMost: the compiler then unrolls
/// loops, and what they read stays in registers.
template <int64_t kMost, typename Function>
HWY_INLINE void with_constant(int64_t number, const Function& function) {
  if constexpr (kMost == 0)
    function(number);
  else if (number == kMost)
    function(std::integral_constant<int64_t, kMost>());
  else
    with_constant<kMost - 1>(number, function);
}

void blend_rows(const float* const* rows, const float* weights, int64_t num_rows, int64_t num,
                float* __restrict out) {
  with_constant<6>(num_rows, [&](auto constant_rows) {
    const Floats floats;
    int64_t i = 0;
    for (; lanes::kHasVectors && i + kLanes <= num; i += kLanes) {
      auto sum = hn::Mul(hn::LoadU(floats, rows[0] + i), hn::Set(floats, weights[0]));
      for (int64_t k = 1; k < constant_rows; ++k)
        sum = hn::Add(sum, hn::Mul(hn::LoadU(floats, rows[k] + i), hn::Set(floats, weights[k])));
      hn::StoreU(sum, floats, out + i);
    }
    for (; i < num; ++i) {
      float sum = rows[0][i] * weights[0];
      for (int64_t k = 1; k < constant_rows; ++k) sum += rows[k][i] * weights[k];
      out[i] = sum;
    }
  });
}

void columns_1(const float* in, const Taps& taps, int64_t num_out, float* out) {
  const float* weights = taps.weights.data();
  for (int64_t x = 0; x < num_out; ++x, weights += taps.num_taps) {
    const float* from = in + taps.firsts[static_cast<size_t>(x)];
    float sum = 0;
    for (int64_t k = 0; k < taps.num_taps; ++k) sum += from[k] * weights[k];
    out[x] = sum;
  }
}

using Eight = float __attribute__((vector_size(32)));

HWY_INLINE void load(const float* from, Eight* eight) { std::memcpy(eight, from, sizeof *eight); }

/// Computes columns with two pixels of three channels per vector, from output `begin` on. The
/// vector's halves are added at the end.
HWY_INLINE void columns_from(int64_t begin, int64_t num_pairs, const float* in, const Taps& taps,
                             int64_t num_out, float* const* outs) {
  const float* pairs = taps.pairs.data();
  const int32_t* firsts = taps.firsts.data();
  float* __restrict a = outs[0], * __restrict b = outs[1], * __restrict c = outs[2];
  for (int64_t x = begin; x < num_out; ++x) {
    const float* from = in + 3 * int64_t{firsts[x]};
    const float* weights = pairs + (x / 2 * num_pairs * 2 + x % 2) * 8;
    Eight sum{}, values{}, weight{};
    for (int64_t pair = 0; pair < num_pairs; ++pair) {
      load(from + 6 * pair, &values);
      load(weights + 16 * pair, &weight);
      sum = pair == 0 ? values * weight : sum + values * weight;
    }
    sum += __builtin_shufflevector(sum, sum, 3, 4, 5, 3, 4, 5, 6, 7);
    a[x] = sum[0];
    b[x] = sum[1];
    c[x] = sum[2];
  }
}

#if HWY_TARGET == HWY_AVX3_DL

/// Computes outputs x and x + 1, x even. Lanes 0 to 2 and 8 to 10 are sums over the first inputs of
/// the pairs. Lanes 3 to 5 and 11 to 13 are sums over the second ones.
HWY_INLINE __m512 halves_of_two(const float* in, const int32_t* firsts, const float* weights,
                                int64_t num_pairs) {
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
HWY_INLINE __m512 four_outputs(const float* in, const int32_t* firsts, const float* weights,
                               int64_t num_pairs) {
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
HWY_INLINE __m256 channel_of(int c, __m512 left, __m512 right) {
  const __m512i of_channel = _mm512_add_epi32(
      _mm512_setr_epi32(0, 3, 6, 9, 16, 19, 22, 25, 0, 0, 0, 0, 0, 0, 0, 0), _mm512_set1_epi32(c));
  const __m512 channel = _mm512_permutex2var_ps(left, of_channel, right);
  return __builtin_shufflevector(channel, channel, 0, 1, 2, 3, 4, 5, 6, 7);
}

/// Computes eight outputs at a time, and returns the number of outputs done.
HWY_INLINE int64_t columns_by_eight(int64_t num_pairs, const float* in, const Taps& taps,
                                    int64_t num_out, float* const* outs) {
  const int32_t* firsts = taps.firsts.data();
  const float* weights = taps.pairs.data();
  int64_t x = 0;
  for (; x + 8 <= num_out; x += 8, firsts += 8, weights += 64 * num_pairs) {
    const __m512 left = four_outputs(in, firsts, weights, num_pairs);
    const __m512 right = four_outputs(in, firsts + 4, weights + 32 * num_pairs, num_pairs);
    for (int c = 0; c < 3; ++c) _mm256_storeu_ps(outs[c] + x, channel_of(c, left, right));
  }
  return x;
}

#else

HWY_INLINE int64_t columns_by_eight(int64_t, const float*, const Taps&, int64_t, float* const*) {
  return 0;
}

#endif

void columns_3(const float* in, const Taps& taps, int64_t num_out, float* const* outs) {
  with_constant<6>(taps.num_pairs(), [&](auto num_pairs) {
    const int64_t begin = columns_by_eight(num_pairs, in, taps, num_out, outs);
    columns_from(begin, num_pairs, in, taps, num_out, outs);
  });
}

constexpr PixelKernels kKernels{scale, scale_in_turn, scale_3, blend_rows, columns_1, columns_3};

}  // namespace
}  // namespace lockstep::data::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace lockstep::data {

const PixelKernels& pixel_kernels(SimdPath path) { return LOCKSTEP_OF_PATH(path, kKernels); }

}  // namespace lockstep::data

#endif
