// Kernels of QuadWork. Products are exact sums of int32 with every instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "infer/sparse/quad_kernels.cpp"
#include "base/simd/targets.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <hwy/highway.h>

#include "base/simd/lanes.h"
#include "infer/sparse/quad_kernels.h"

HWY_BEFORE_NAMESPACE();

#if HWY_TARGET == HWY_AVX3_DL
#pragma GCC target("avx512vnni")  // Highway 1.0.3 names another instruction set
#endif

namespace lockstep::infer::HWY_NAMESPACE {
namespace {

using lockstep::HWY_NAMESPACE::kNumLanes;
using lockstep::HWY_NAMESPACE::Lanes;
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::Vec<Lanes<float>>;
using Ints = hn::Vec<Lanes<int32_t>>;
using Quads = hn::Vec<Lanes<uint32_t>>;
constexpr Lanes<float> kFloats;
constexpr Lanes<int32_t> kInts;
constexpr Lanes<uint32_t> kQuads;
constexpr int64_t kLanes = kNumLanes<float>;

/// Weights of a quad, ready for dot().
#if HWY_TARGET == HWY_AVX3_DL
constexpr int kNumParts = 1;
#elif HWY_TARGET == HWY_AVX2
constexpr int kNumParts = 2;  // bytes 0 and 2, and bytes 1 and 3, as int16
#else
constexpr int kNumParts = 4;
#endif
using Weights = std::array<Ints, kNumParts>;

HWY_INLINE Weights prepared(Ints weights) {
#if HWY_TARGET == HWY_AVX3_DL
  return {weights};
#elif HWY_TARGET == HWY_AVX2
  const Lanes<int16_t> pairs;
  const auto odd = hn::BitCast(pairs, weights);
  return {hn::BitCast(kInts, hn::ShiftRight<8>(hn::ShiftLeft<8>(odd))),
          hn::BitCast(kInts, hn::ShiftRight<8>(odd))};
#else
  return {hn::ShiftRight<24>(hn::ShiftLeft<24>(weights)),
          hn::ShiftRight<24>(hn::ShiftLeft<16>(weights)),
          hn::ShiftRight<24>(hn::ShiftLeft<8>(weights)), hn::ShiftRight<24>(weights)};
#endif
}

/// Adds the products of four unsigned and four signed bytes to each lane.
HWY_INLINE Ints dot(Quads items, const Weights& weights, Ints sums) {
#if HWY_TARGET == HWY_AVX3_DL
  return Ints{_mm512_dpbusd_epi32(sums.raw, items.raw, weights[0].raw)};
#elif HWY_TARGET == HWY_AVX2
  const auto even = hn::And(items, hn::Set(kQuads, 0x00FF00FFU));
  const auto odd = hn::BitCast(kQuads, hn::ShiftRight<8>(hn::BitCast(Lanes<uint16_t>(), items)));
  const Ints first{_mm256_madd_epi16(even.raw, weights[0].raw)};
  const Ints second{_mm256_madd_epi16(odd.raw, weights[1].raw)};
  return hn::Add(sums, hn::Add(first, second));
#else
  const auto byte = [&](int i) {
    return hn::BitCast(kInts, hn::And(hn::ShiftRightSame(items, 8 * i), hn::Set(kQuads, 0xFFU)));
  };
  for (int i = 0; i < kNumParts; ++i) sums = hn::Add(sums, hn::Mul(byte(i), weights[i]));
  return sums;
#endif
}

/// Returns round(values / scale) + zero, clamped to bytes.
HWY_INLINE Ints rounded(Floats values, const Rounding& rounding) {
  const auto steps = hn::NearestInt(hn::Mul(values, hn::Set(kFloats, 1 / rounding.scale)));
  // Clamped first: the largest int32 stands for all values beyond it.
  const auto least = hn::Set(kInts, -rounding.zero), most = hn::Set(kInts, 255 - rounding.zero);
  return hn::Add(hn::Min(hn::Max(steps, least), most), hn::Set(kInts, rounding.zero));
}

HWY_INLINE Floats restored(Ints bytes, const Rounding& rounding) {
  const auto steps = hn::Sub(bytes, hn::Set(kInts, rounding.zero));
  return hn::Mul(hn::ConvertTo(kFloats, steps), hn::Set(kFloats, rounding.scale));
}

/// Returns byte `i` of each quad.
HWY_INLINE Ints byte_of(Quads quads, int i) {
  return hn::BitCast(kInts, hn::And(hn::ShiftRightSame(quads, 8 * i), hn::Set(kQuads, 0xFFU)));
}

HWY_INLINE Quads as_byte(Ints bytes, int i) {
  return hn::ShiftLeftSame(hn::BitCast(kQuads, bytes), 8 * i);
}

/// Returns the outputs of a channel from its sums, with the residuals at `place`.
HWY_INLINE Floats finished(const QuadWork& work, Ints sums, int64_t channel, int64_t p) {
  auto values = hn::MulAdd(hn::ConvertTo(kFloats, sums), hn::Set(kFloats, work.factors_O[channel]),
                           hn::Set(kFloats, work.bias_O[channel]));
  if (work.inner_rounding != nullptr)
    values = restored(rounded(values, *work.inner_rounding), *work.inner_rounding);
  if (work.residual != nullptr)
    values = hn::Add(values, hn::LoadU(kFloats, work.residual + channel * work.output_stride + p));
  if (work.residual_bytes != nullptr) {
    const auto quads =
        hn::LoadU(kQuads, work.residual_bytes + channel / 4 * work.output_stride + p);
    values = hn::Add(
        values, restored(byte_of(quads, static_cast<int>(channel % 4)), work.residual_rounding));
  }
  // The bound is the first operand: x86 then returns a NaN of the values.
  return hn::Min(hn::Set(kFloats, work.high), hn::Max(hn::Set(kFloats, work.low), values));
}

/// Returns the sums of a row for kVectors vectors of pixels. Sums of kSets weights run next to each
/// other, since an addition takes several cycles.
template <int kVectors, int kSets>
HWY_INLINE std::array<Ints, kVectors> sums_of(const QuadWork& work, int64_t row, int64_t p) {
  std::array<std::array<Ints, kVectors>, kSets> sums;
  for (auto& set : sums) set.fill(hn::Zero(kInts));
  const auto add = [&](int64_t k, int set) {
    const Weights weights = prepared(hn::Set(kInts, work.weights_K[k]));
    const uint32_t* const from = work.inputs + p + work.offsets_K[k];
    for (int v = 0; v < kVectors; ++v)
      sums[set][v] = dot(hn::LoadU(kQuads, from + v * kLanes), weights, sums[set][v]);
  };
  const int64_t end = work.begins_O[row + 1];
  int64_t k = work.begins_O[row];
  for (; k + kSets <= end; k += kSets)
    for (int set = 0; set < kSets; ++set) add(k + set, set);
  for (; k < end; ++k) add(k, 0);
  for (int v = 0; v < kVectors; ++v)
    for (int set = 1; set < kSets; ++set) sums[0][v] = hn::Add(sums[0][v], sums[set][v]);
  return sums[0];
}

template <int kVectors, int kSets>
HWY_INLINE void tile(const QuadWork& work, int64_t begin_O, int64_t end_O, int64_t p) {
  for (int64_t o = begin_O; o < end_O; o += 4) {
    std::array<Quads, kVectors> quads;
    quads.fill(hn::Zero(kQuads));
    for (int i = 0; i < 4; ++i) {
      const int64_t channel = work.channels_O[o + i];
      if (channel >= work.num_channels) break;
      const auto sums = sums_of<kVectors, kSets>(work, o + i, p);
      for (int v = 0; v < kVectors; ++v) {
        const int64_t at = p + v * kLanes;
        const auto values = finished(work, sums[v], channel, at);
        if (work.outputs != nullptr) {
          const auto mask = hn::BitCast(kFloats, hn::LoadU(kQuads, work.mask + at));
          hn::StoreU(hn::And(values, mask), kFloats,
                     work.outputs + channel * work.output_stride + at);
        }
        if (work.bytes != nullptr)
          quads[v] = hn::Or(quads[v], as_byte(rounded(values, work.output_rounding), i));
      }
    }
    if (work.bytes == nullptr) continue;
    const auto zero =
        hn::Set(kQuads, 0x01010101U * static_cast<uint32_t>(work.output_rounding.zero));
    uint32_t* const to = work.bytes + work.channels_O[o] / 4 * work.output_stride + p;
    for (int v = 0; v < kVectors; ++v) {
      const auto mask = hn::LoadU(kQuads, work.mask + p + v * kLanes);
      hn::StoreU(hn::Or(hn::And(mask, quads[v]), hn::AndNot(mask, zero)), kQuads, to + v * kLanes);
    }
  }
}

void pixels(const QuadWork& work, int64_t begin_O, int64_t end_O, int64_t begin_P, int64_t end_P) {
  int64_t p = begin_P;
  for (; p + 8 * kLanes <= end_P; p += 8 * kLanes) tile<8, 1>(work, begin_O, end_O, p);
  for (; p + 4 * kLanes <= end_P; p += 4 * kLanes) tile<4, 2>(work, begin_O, end_O, p);
  for (; p + 2 * kLanes <= end_P; p += 2 * kLanes) tile<2, 4>(work, begin_O, end_O, p);
  for (; p < end_P; p += kLanes) tile<1, 8>(work, begin_O, end_O, p);
}

int32_t byte_of(uint32_t quad, int64_t i) { return static_cast<int32_t>(quad >> (8 * i) & 0xFFU); }

/// Returns the byte of one value.
int32_t rounded(float value, const Rounding& rounding) {
  return static_cast<int32_t>(hn::GetLane(rounded(hn::Set(kFloats, value), rounding)));
}

float restored(int32_t byte, const Rounding& rounding) {
  return static_cast<float>(byte - rounding.zero) * rounding.scale;
}

float finished(const QuadWork& work, int32_t sum, int64_t channel) {
  float value = std::fma(static_cast<float>(sum), work.factors_O[channel], work.bias_O[channel]);
  if (work.inner_rounding != nullptr)
    value = restored(rounded(value, *work.inner_rounding), *work.inner_rounding);
  if (work.residual != nullptr) value += work.residual[channel];
  if (work.residual_bytes != nullptr)
    value +=
        restored(byte_of(work.residual_bytes[channel / 4], channel % 4), work.residual_rounding);
  // A NaN passes both comparisons.
  return value < work.low ? work.low : value > work.high ? work.high : value;
}

int32_t sum_of(const QuadWork& work, int64_t row) {
  auto sums = hn::Zero(kInts);
  const int64_t end = work.begins_O[row + 1];
  int64_t k = work.begins_O[row];
  const auto* const items = reinterpret_cast<const int32_t*>(work.inputs);
  for (; k + kLanes <= end; k += kLanes) {
    const auto quads = hn::GatherIndex(kInts, items, hn::LoadU(kInts, work.offsets_K + k));
    sums = dot(hn::BitCast(kQuads, quads), prepared(hn::LoadU(kInts, work.weights_K + k)), sums);
  }
  int32_t sum = hn::GetLane(hn::SumOfLanes(kInts, sums));
  for (; k < end; ++k)
    for (int i = 0; i < 4; ++i)
      sum += byte_of(work.inputs[work.offsets_K[k]], i) *
             static_cast<int8_t>(byte_of(static_cast<uint32_t>(work.weights_K[k]), i));
  return sum;
}

void sample(const QuadWork& work, int64_t begin_O, int64_t end_O) {
  for (int64_t o = begin_O; o < end_O; o += 4) {
    uint32_t quad = 0;
    for (int i = 0; i < 4; ++i) {
      const int64_t channel = work.channels_O[o + i];
      if (channel >= work.num_channels) break;
      const float value = finished(work, sum_of(work, o + i), channel);
      if (work.outputs != nullptr) work.outputs[channel] = value;
      if (work.bytes != nullptr)
        quad |= static_cast<uint32_t>(rounded(value, work.output_rounding)) << (8 * i);
    }
    if (work.bytes != nullptr) work.bytes[work.channels_O[o] / 4] = quad;
  }
}

void round(const std::array<const float*, 4>& from, int64_t n, const Rounding& rounding,
           uint32_t* to) {
  int64_t x = 0;
  for (; x + kLanes <= n; x += kLanes) {
    auto quads = hn::Zero(kQuads);
    for (int i = 0; i < 4; ++i)
      quads = hn::Or(quads, as_byte(rounded(hn::LoadU(kFloats, from[i] + x), rounding), i));
    hn::StoreU(quads, kQuads, to + x);
  }
  for (; x < n; ++x) {
    to[x] = 0;
    for (int i = 0; i < 4; ++i)
      to[x] |= static_cast<uint32_t>(rounded(from[i][x], rounding)) << (8 * i);
  }
}

void round_bytes(const float* from, int64_t n, const Rounding& rounding, uint8_t* to) {
  const hn::Rebind<uint8_t, Lanes<int32_t>> bytes;
  int64_t x = 0;
  for (; x + kLanes <= n; x += kLanes)
    hn::StoreU(hn::DemoteTo(bytes, rounded(hn::LoadU(kFloats, from + x), rounding)), bytes, to + x);
  for (; x < n; ++x) to[x] = static_cast<uint8_t>(rounded(from[x], rounding));
}

void restore(const uint32_t* from, int64_t n, const Rounding& rounding, int64_t num_channels,
             const std::array<float*, 4>& to) {
  for (int i = 0; i < static_cast<int>(num_channels); ++i) {
    int64_t x = 0;
    for (; x + kLanes <= n; x += kLanes)
      hn::StoreU(restored(byte_of(hn::LoadU(kQuads, from + x), i), rounding), kFloats, to[i] + x);
    for (; x < n; ++x) to[i][x] = restored(byte_of(from[x], i), rounding);
  }
}

constexpr QuadKernels kKernels{pixels, sample, round, round_bytes, restore};

}  // namespace
}  // namespace lockstep::infer::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace lockstep::infer {

const QuadKernels& quad_kernels(SimdPath path) { return LOCKSTEP_OF_PATH(path, kKernels); }

}  // namespace lockstep::infer

#endif
