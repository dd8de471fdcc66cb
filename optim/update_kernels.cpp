// Kernels of updates. The rules are plain loops, which the compiler vectorises for each target.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/update_kernels.cpp"
#include "base/simd/targets.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "base/simd/bit_mask_kernels.h"
#include "base/simd/lanes.h"
#include "optim/rules.h"

HWY_BEFORE_NAMESPACE();

namespace lockstep::optim::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
namespace lanes = lockstep::HWY_NAMESPACE;

template <typename Rule>
void update(int64_t num, float* __restrict values, float* __restrict grads,
            float* __restrict first_slot, float* __restrict second_slot,
            const rules::WeightDecay<float>& decay_, const Rule& rule_) {
  const Rule rule = rule_;  // a copy, which no store below can change
  const rules::WeightDecay<float> decay = decay_;
  for (int64_t i = 0; i < num; ++i) {
    const float w = rules::multiply_add(values[i], decay.minus_share, values[i]);
    const float g = rules::multiply_add(values[i], decay.l2, grads[i]);
    values[i] = rules::apply(rule, w, g, first_slot, second_slot, i);
  }
}

void follow(int64_t num, const float* __restrict weights, float share, float* __restrict averages) {
  for (int64_t i = 0; i < num; ++i) averages[i] += share * (weights[i] - averages[i]);
}

/// True if a block of so few kept elements is packed through a list of their positions. It avoids
/// branches that the processor cannot predict: packing 10 % of 20 M elements then runs at memory
/// speed. Targets without compressed() list every block. pack() and put_kept() choose alike.
[[maybe_unused]] constexpr bool is_listed(int64_t num_kept, int64_t num_elements) {
  return HWY_TARGET == HWY_AVX2 && 4 * num_kept <= num_elements;
}

/// Lists the positions of a block's kept elements. Prefetches a line or two per byte of the mask:
/// the processor drops further prefetches beyond its limit.
void list(const float* values, const float* grads, const uint8_t* bits, int64_t num_elements,
          uint16_t* positions) {
  constexpr int64_t kItemsALine = 16;
  for (int64_t first = 0; first < num_elements; first += 8) {
    if (first % kItemsALine == 0)
      prefetch_line_ahead(values + first), prefetch_line_ahead(grads + first);
    const unsigned kept = bits[first / 8];
#if HWY_TARGET == HWY_SCALAR
    for (unsigned left = kept; left != 0; left &= left - 1)
      *positions++ = static_cast<uint16_t>(first + std::countr_zero(left));
#else
    const hn::FixedTag<uint16_t, 8> tag;
    const auto in_byte = hn::LoadU(hn::FixedTag<uint8_t, 8>(),
                                   reinterpret_cast<const uint8_t*>(&kByteOrders.pack[kept]));
    // Stores 8 positions but advances by the kept ones: PackedBlock::kSlack has room for that.
    hn::StoreU(hn::Add(hn::PromoteTo(tag, in_byte), hn::Set(tag, static_cast<uint16_t>(first))),
               tag, positions);
    positions += std::popcount(kept);
#endif
  }
}

void pack_listed(const float* values, const float* grads, PackedBlock& block) {
  for (int64_t k = 0; k < block.num_kept; ++k) {
    const int64_t position = block.positions[static_cast<size_t>(k)];
    block.values[static_cast<size_t>(k)] = values[position];
    block.grads[static_cast<size_t>(k)] = grads[position];
  }
}

/// Compresses a vector and stores it, by halves if it is large: a 64-byte store that crosses cache
/// lines takes twice as long as two of 32 bytes.
template <typename Tag>
HWY_INLINE void store_compressed(Tag tag, lanes::LaneBits<float> kept, const float* from,
                                 float* out) {
  const auto packed = lanes::compressed(tag, kept, hn::LoadU(tag, from));
#if HWY_CAP_GE512
  const hn::Half<Tag> half;
  hn::StoreU(hn::LowerHalf(half, packed), half, out);
  hn::StoreU(hn::UpperHalf(half, packed), half, out + hn::MaxLanes(half));
#else
  hn::StoreU(packed, tag, out);
#endif
}

/// Packs a block by whole vectors, a rest one by one.
template <typename Tag>
void pack_vectors(Tag tag, const float* values, const float* grads, const uint8_t* bits,
                  int64_t num_elements, PackedBlock& block) {
  float *values_K = block.values.data(), *grads_K = block.grads.data();
  for_words(num_elements, [&](int64_t first, int64_t num, auto is_whole) {
    uint64_t kept = word_of(bits + first / 8, num);
    if (kept == 0) return;
    if constexpr (is_whole) {
      for (int lane = 0; lane < kWordItems; lane += lanes::kNumLanes<float>) {
        const auto here = lanes::part_of<float>(kept, lane);
        store_compressed(tag, here, values + first + lane, values_K);
        store_compressed(tag, here, grads + first + lane, grads_K);
        values_K += std::popcount(here);
        grads_K += std::popcount(here);
      }
    } else {
      for (; kept != 0; kept &= kept - 1) {
        *values_K++ = values[first + std::countr_zero(kept)];
        *grads_K++ = grads[first + std::countr_zero(kept)];
      }
    }
  });
}

void pack(const float* values, const float* grads, const uint8_t* bits, int64_t num_elements,
          PackedBlock& block) {
  block.num_kept = count_set(bits, num_elements);
  if (block.num_kept == 0) return;
  if constexpr (lanes::kHasExpand<float>)
    if (!is_listed(block.num_kept, num_elements))
      return pack_vectors(lanes::Lanes<float>(), values, grads, bits, num_elements, block);
  list(values, grads, bits, num_elements, block.positions.data());
  pack_listed(values, grads, block);
}

/// Unpacks with whole vectors. Masked stores that overlap the next load would delay each load.
template <typename Tag>
void put_vectors(Tag tag, const float* packed_K, const uint8_t* bits, int64_t num_elements,
                 float* dense) {
  for_words(num_elements, [&](int64_t first, int64_t num, auto is_whole) {
    uint64_t kept = word_of(bits + first / 8, num);
    if (kept == 0) return;
    if constexpr (is_whole) {
      for (int lane = 0; lane < kWordItems; lane += lanes::kNumLanes<float>) {
        const auto here = lanes::part_of<float>(kept, lane);
        float* const out = dense + first + lane;
        const auto loaded = hn::LoadU(tag, packed_K);
        hn::StoreU(lanes::expanded(tag, here, loaded, hn::LoadU(tag, out)), tag, out);
        packed_K += std::popcount(here);
      }
    } else {
      for (; kept != 0; kept &= kept - 1) dense[first + std::countr_zero(kept)] = *packed_K++;
    }
  });
}

void put_kept(const PackedBlock& block, const uint8_t* bits, int64_t num_elements, float* dense) {
  if constexpr (lanes::kHasExpand<float>)
    if (!is_listed(block.num_kept, num_elements))
      return put_vectors(lanes::Lanes<float>(), block.values.data(), bits, num_elements, dense);
  for (int64_t k = 0; k < block.num_kept; ++k)
    dense[block.positions[static_cast<size_t>(k)]] = block.values[static_cast<size_t>(k)];
}

/// Dynamic map of bytes (optim/state_blocks.h). Decade d has the numbers n from first_of(d) to
/// twice that, exclusive; n stands for (n + 0.5) * slope + base. Signed numbers are coded as n or
/// -n, positive ones as n - 1. 0 is 0, and first_of(kDecades) is the number 1.
template <bool kSigned>
struct DynamicMap {
  static constexpr bool kIsSigned = kSigned;
  static constexpr int kDecades = 7;
  /// An entry for each decade, and more, so that a vector can select entries.
  using ByDecade = std::array<float, 16>;

  static constexpr int first_of(int decade) { return (kIsSigned ? 1 : 2) << decade; }
  static constexpr double power_of_ten(int decade) {
    constexpr std::array kPowers{1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0};
    return kPowers[static_cast<size_t>(decade)];
  }
  static constexpr double number(int n, int decade) {
    return power_of_ten(decade) * (0.1 + 0.9 * (n - first_of(decade) + 0.5) / first_of(decade));
  }
  /// Returns a table with of(d) in entry d + shift, and `rest` in the others.
  template <typename Of>
  static constexpr ByDecade table(const Of& of, size_t shift, float rest = 0) {
    ByDecade all{};
    for (float& entry : all) entry = rest;
    for (int d = 0; d < kDecades; ++d)
      all[static_cast<size_t>(d) + shift] = static_cast<float>(of(d));
    return all;
  }
  /// Returns the least number that is rounded to one of the decade. No positive number becomes 0.
  static constexpr double least_of(int d) {
    if (d > 0) return (number(first_of(d) - 1, d - 1) + number(first_of(d), d)) / 2;
    return kIsSigned ? number(1, 0) / 2 : 1.2e-38;
  }

  static constexpr ByDecade kSlopes =
      table([](int d) { return 0.9 * power_of_ten(d) / first_of(d); }, 0);
  static constexpr ByDecade kBases = table([](int d) { return -0.8 * power_of_ten(d); }, 0);
  static constexpr ByDecade kLeast = table(least_of, 0);
  // Entry 0 of these is for the number 0.
  static constexpr ByDecade kInverses =
      table([](int d) { return first_of(d) / power_of_ten(d) / 0.9; }, 1);
  static constexpr ByDecade kFirsts = table(first_of, 1, kIsSigned ? 0 : 1);
  static constexpr float kFirst = first_of(0), kOne = first_of(kDecades);
  static constexpr float kLeastOne =
      static_cast<float>((number(first_of(kDecades) - 1, kDecades - 1) + 1) / 2);
  /// Term of n, which is x / slope + first * kShift - 0.5, rounded.
  static constexpr float kShift = static_cast<float>(0.8 / 0.9);
  /// Summand that gives a float whose lowest byte is the number's code, rounded.
  static constexpr float kToByte = kIsSigned ? 12582912.0F : 8388607.0F;
};
using SignedMap = DynamicMap<true>;
using PositiveMap = DynamicMap<false>;

/// Least magnitude of a scale: the inverse of a smaller one overflows. Such blocks become 0.
constexpr float kLeastScale = 1e-37F;

/// Returns the number of a byte, times the scale. `zero`: the result for 0.
template <typename Map>
LOCKSTEP_INLINE float number_of(uint8_t byte, float scale, float zero) {
  const int code = Map::kIsSigned ? static_cast<int8_t>(byte) : byte + 1;
  const auto n = static_cast<float>(code < 0 ? -code : code);
  float slope = 0, base = 0;
  for (size_t d = 0; d < Map::kDecades; ++d) {
    const bool is_reached = n >= Map::kFirsts[d + 1];
    slope = is_reached ? Map::kSlopes[d] : slope;
    base = is_reached ? Map::kBases[d] : base;
  }
  float number = n == Map::kOne ? 1 : rules::multiply_add(n + 0.5F, slope, base);
  number = code < 0 && n != Map::kOne ? -number : number;
  return n >= Map::kFirst ? number * scale : zero;
}

/// Returns the byte of the number of the map that is nearest to x.
template <typename Map>
LOCKSTEP_INLINE uint8_t byte_of(float x) {
  const float size = x < 0 ? -x : x;
  float inverse = 0, first = Map::kFirsts[0];
  for (size_t d = 0; d < Map::kDecades; ++d) {
    const bool is_reached = size >= Map::kLeast[d];
    inverse = is_reached ? Map::kInverses[d + 1] : inverse;
    first = is_reached ? Map::kFirsts[d + 1] : first;
  }
  float n = rules::multiply_add(size, inverse, rules::multiply_add(first, Map::kShift, -0.5F));
  const float last = rules::multiply_add(first, 2.0F, -1.0F);
  n = n < last ? n : last;  // also for NaN
  n = n > first ? n : first;
  n = x >= Map::kLeastOne ? Map::kOne : n;
  return static_cast<uint8_t>(std::bit_cast<uint32_t>((x < 0 ? -n : n) + Map::kToByte));
}

// The same for vectors of at least 8 lanes, which select from tables by decade.

#if HWY_TARGET != HWY_SCALAR
template <typename Tag>
HWY_INLINE auto selected(Tag tag, const std::array<float, 16>& table,
                         hn::VFromD<hn::RebindToSigned<Tag>> index) {
  return hn::TableLookupLanes(hn::LoadU(tag, table.data()), hn::IndicesFromVec(tag, index));
}

template <typename Map, typename Tag>
HWY_INLINE auto numbers_of(Tag tag, const uint8_t* bytes, float scale, float zero) {
  const hn::RebindToSigned<Tag> ints;
  const auto loaded = hn::LoadU(hn::Rebind<uint8_t, Tag>(), bytes);
  auto code = hn::Zero(ints);
  if constexpr (Map::kIsSigned)
    code = hn::PromoteTo(ints, hn::BitCast(hn::Rebind<int8_t, Tag>(), loaded));
  else
    code = hn::Add(hn::PromoteTo(ints, loaded), hn::Set(ints, 1));
  const auto n = hn::ConvertTo(tag, hn::Abs(code));
  // The decade is the exponent: first_of(d) are powers of 2.
  constexpr int kExponentOfFirst = Map::kIsSigned ? 127 : 128;
  const auto exponent = hn::ShiftRight<23>(hn::BitCast(ints, n));
  const auto decade = hn::Max(hn::Sub(exponent, hn::Set(ints, kExponentOfFirst)), hn::Zero(ints));
  const auto one = hn::Set(tag, Map::kOne);
  auto number = hn::MulAdd(hn::Add(n, hn::Set(tag, 0.5F)), selected(tag, Map::kSlopes, decade),
                           selected(tag, Map::kBases, decade));
  if constexpr (Map::kIsSigned)
    number =
        hn::IfThenElse(hn::RebindMask(tag, hn::Lt(code, hn::Zero(ints))), hn::Neg(number), number);
  number = hn::IfThenElse(hn::Eq(n, one), hn::Set(tag, 1.0F), number);
  return hn::IfThenElse(hn::Ge(n, hn::Set(tag, Map::kFirst)), hn::Mul(number, hn::Set(tag, scale)),
                        hn::Set(tag, zero));
}

template <typename Map, typename Tag>
HWY_INLINE auto bytes_of(Tag tag, hn::VFromD<Tag> x) {
  const hn::RebindToSigned<Tag> ints;
  const auto size = Map::kIsSigned ? hn::Abs(x) : x;
  const auto step = [&](auto least, auto index, int by) {
    return hn::IfThenElse(hn::RebindMask(ints, hn::Ge(size, least)),
                          hn::Add(index, hn::Set(ints, by)), index);
  };
  // A binary search for the decade, 0 for the number 0.
  auto index = step(hn::Set(tag, Map::kLeast[3]), hn::Zero(ints), 4);
  index = step(selected(tag, Map::kLeast, hn::Add(index, hn::Set(ints, 1))), index, 2);
  index = step(selected(tag, Map::kLeast, index), index, 1);
  const auto first = selected(tag, Map::kFirsts, index);
  auto n = hn::MulAdd(size, selected(tag, Map::kInverses, index),
                      hn::MulAdd(first, hn::Set(tag, Map::kShift), hn::Set(tag, -0.5F)));
  const auto last = hn::MulAdd(first, hn::Set(tag, 2.0F), hn::Set(tag, -1.0F));
  n = hn::IfThenElse(hn::Lt(n, last), n, last);
  n = hn::IfThenElse(hn::Gt(n, first), n, first);
  n = hn::IfThenElse(hn::Ge(x, hn::Set(tag, Map::kLeastOne)), hn::Set(tag, Map::kOne), n);
  if constexpr (Map::kIsSigned) n = hn::IfThenElse(hn::Lt(x, hn::Zero(tag)), hn::Neg(n), n);
  const auto codes = hn::BitCast(ints, hn::Add(n, hn::Set(tag, Map::kToByte)));
#if HWY_TARGET == HWY_AVX3_DL  // TruncateTo() gives other bytes in Highway 1.0.3
  return hn::VFromD<hn::Rebind<uint8_t, Tag>>{_mm512_cvtepi32_epi8(codes.raw)};
#else
  return hn::DemoteTo(hn::Rebind<uint8_t, Tag>(), hn::And(codes, hn::Set(ints, 255)));
#endif
}
#endif

/// Calls by_vector(i) for whole vectors of at least 8 lanes, and by_one(i) for the rest.
template <typename ByVector, typename ByOne>
HWY_INLINE void by_vectors(int64_t num, const ByVector& by_vector, const ByOne& by_one) {
  int64_t i = 0;
  if constexpr (lanes::kNumLanes<float> >= 8)
    for (; i + lanes::kNumLanes<float> <= num; i += lanes::kNumLanes<float>) by_vector(i);
  for (; i < num; ++i) by_one(i);
}

template <typename Map>
void dequantize_by(int64_t num, const uint8_t* __restrict bytes, float scale,
                   float* __restrict values) {
  const float zero = scale * 0 + 0.0F;  // +0, or NaN if the scale is not finite
  by_vectors(
      num,
      [&]([[maybe_unused]] int64_t i) {
#if HWY_TARGET != HWY_SCALAR
        const lanes::Lanes<float> tag;
        hn::StoreU(numbers_of<Map>(tag, bytes + i, scale, zero), tag, values + i);
#endif
      },
      [&](int64_t i) { values[i] = number_of<Map>(bytes[i], scale, zero); });
}

void dequantize(int64_t num, const uint8_t* codes, float scale, bool is_positive, float* values) {
  is_positive ? dequantize_by<PositiveMap>(num, codes, scale, values)
              : dequantize_by<SignedMap>(num, codes, scale, values);
}

template <typename Map>
void quantize_by(int64_t num, const float* __restrict values, float scale,
                 uint8_t* __restrict bytes) {
  const float inverse = scale == 0 ? 0 : 1 / scale;
  by_vectors(
      num,
      [&]([[maybe_unused]] int64_t i) {
#if HWY_TARGET != HWY_SCALAR
        const lanes::Lanes<float> tag;
        const auto x = hn::Mul(hn::LoadU(tag, values + i), hn::Set(tag, inverse));
        hn::StoreU(bytes_of<Map>(tag, x), hn::Rebind<uint8_t, lanes::Lanes<float>>(), bytes + i);
#endif
      },
      [&](int64_t i) { bytes[i] = byte_of<Map>(values[i] * inverse); });
}

/// Returns the number with the largest magnitude, of two opposite ones the positive one. NaN if one
/// is not finite.
float largest_of(int64_t num, const float* __restrict values) {
  // The bits of positive floats, infinity and NaN are ordered as the floats.
  int32_t most_bits = 0;
  float most = 0;
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const lanes::Lanes<float> tag;
  const hn::RebindToSigned<lanes::Lanes<float>> ints;
  auto bits = hn::Zero(ints);
  auto highest = hn::Zero(tag);
  for (; i + lanes::kNumLanes<float> <= num; i += lanes::kNumLanes<float>) {
    const auto here = hn::LoadU(tag, values + i);
    bits = hn::Max(bits, hn::BitCast(ints, hn::Abs(here)));
    highest = hn::IfThenElse(hn::Gt(here, highest), here, highest);
  }
  most_bits = hn::GetLane(hn::MaxOfLanes(ints, bits));
  most = hn::GetLane(hn::MaxOfLanes(tag, highest));
#endif
  for (; i < num; ++i) {
    most_bits = std::max(most_bits, std::bit_cast<int32_t>(values[i]) & 0x7fffffff);
    most = values[i] > most ? values[i] : most;
  }
  const auto size = std::bit_cast<float>(most_bits);
  if (!(size < std::numeric_limits<float>::infinity()))
    return std::numeric_limits<float>::quiet_NaN();
  return most == size ? size : -size;
}

float quantize(int64_t num, const float* values, bool is_positive, uint8_t* codes) {
  float scale = largest_of(num, values);
  if (std::fabs(scale) < kLeastScale) scale = 0;
  is_positive ? quantize_by<PositiveMap>(num, values, scale, codes)
              : quantize_by<SignedMap>(num, values, scale, codes);
  return scale;
}

template <typename... Rule>
struct Updates {
  static constexpr UpdateKernels::Of<Rule...> kAll{update<Rule>...};
};
constexpr UpdateKernels kKernels{pack,     put_kept, dequantize,
                                 quantize, follow,   rules::OfAll<Updates>::kAll};

}  // namespace
}  // namespace lockstep::optim::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace lockstep::optim {

const UpdateKernels& update_kernels(SimdPath path) { return LOCKSTEP_OF_PATH(path, kKernels); }

}  // namespace lockstep::optim

#endif
