// Vector operations of the kernels that Highway 1.0.3 lacks, once for each target: so the guard is
// Highway's (base/simd/targets.h).
#if defined(LOCKSTEP_BASE_SIMD_LANES_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_BASE_SIMD_LANES_H
#undef LOCKSTEP_BASE_SIMD_LANES_H
#else
#define LOCKSTEP_BASE_SIMD_LANES_H
#endif

#include <cstdint>
#include <type_traits>

#include <hwy/highway.h>

#include "base/simd/bit_mask_kernels.h"

HWY_BEFORE_NAMESPACE();

namespace lockstep::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// True if the target has vectors. Without them, kernels leave all items to their scalar loops.
constexpr bool kHasVectors = HWY_TARGET != HWY_SCALAR;
/// True if the target has instructions to compress and expand vectors, and to store some lanes.
constexpr bool kHasCompress = HWY_TARGET == HWY_AVX3_DL;
/// True if the target has compressed() and expanded() for such items, by tables or instructions.
template <typename Item>
constexpr bool kHasExpand = kHasCompress || (HWY_TARGET == HWY_AVX2 && sizeof(Item) == 4);

/// Full vectors of items of this type.
template <typename Item>
using Lanes = hn::ScalableTag<Item>;
template <typename Item>
using SignedLanes = Lanes<std::make_signed_t<Item>>;
template <typename Item>
constexpr int kNumLanes = static_cast<int>(hn::MaxLanes(Lanes<Item>()));

/// Unsigned integer with a bit for each lane, the first lane lowest.
template <typename Item>
using LaneBits = std::conditional_t<kNumLanes<Item> <= 8, uint8_t,
                                    std::conditional_t<kNumLanes<Item> <= 16, uint16_t, uint32_t>>;

/// Returns the bits of one vector of a word of 64 items, from its item `lane` on.
template <typename Item>
HWY_INLINE LaneBits<Item> part_of(uint64_t word, int lane) {
  return static_cast<LaneBits<Item>>(word >> lane);
}

/// Returns the lanes of a mask as bits.
template <typename Tag, typename Mask>
HWY_INLINE uint64_t bits_of(Tag tag, Mask mask) {
  LaneBits<hn::TFromD<Tag>> bits = 0;
  hn::StoreMaskBits(tag, mask, reinterpret_cast<uint8_t*>(&bits));
  return bits;
}

/// Returns the mask of these bits.
template <typename Tag>
HWY_INLINE auto mask_of(Tag tag, LaneBits<hn::TFromD<Tag>> bits) {
#if HWY_TARGET == HWY_AVX3_DL
  return hn::LoadMaskBits(tag, reinterpret_cast<const uint8_t*>(&bits));
#else
  // A lane has at least as many bits as there are lanes. LoadMaskBits() would take longer.
  const hn::RebindToUnsigned<Tag> items;
  using Item = hn::TFromD<decltype(items)>;
  const auto lane_bits = hn::Shl(hn::Set(items, Item{1}), hn::Iota(items, Item{0}));
  return hn::RebindMask(tag, hn::TestBit(hn::Set(items, static_cast<Item>(bits)), lane_bits));
#endif
}

/// True if a lane of the mask is not 0.
template <typename Tag, typename Mask, typename Vector>
HWY_INLINE bool has_nonzero(Tag tag, Mask mask, Vector vector) {
#if HWY_TARGET == HWY_AVX2
  static_cast<void>(tag);
  return _mm256_testz_si256(mask.raw, vector.raw) == 0;  // one instruction instead of three
#else
  return !hn::AllFalse(tag, hn::And(mask, hn::Ne(vector, hn::Zero(tag))));
#endif
}

// Highway 1.0.3 has no Expand(). Its Compress() is slow where it reads a table, which g++ 12 copies
// to the stack at each call.

/// Moves the lanes of the set bits to the first ones, in order. The other lanes have any value.
template <typename Tag>
hn::Vec<Tag> compressed(Tag tag, LaneBits<hn::TFromD<Tag>> bits, hn::Vec<Tag> vector);
/// Moves the first lanes to those of the set bits, in order. The other lanes are those of `others`.
template <typename Tag>
hn::Vec<Tag> expanded(Tag tag, LaneBits<hn::TFromD<Tag>> bits, hn::Vec<Tag> vector,
                      hn::Vec<Tag> others);

#if HWY_TARGET == HWY_AVX3_DL

template <typename Tag>
HWY_INLINE hn::Vec<Tag> compressed(Tag tag, LaneBits<hn::TFromD<Tag>> bits, hn::Vec<Tag> vector) {
  if constexpr (sizeof(hn::TFromD<Tag>) == 8)
    return hn::Vec<Tag>{_mm512_maskz_compress_epi64(bits, vector.raw)};
  else
    return hn::Compress(vector, mask_of(tag, bits));
}

template <typename Tag>
HWY_INLINE hn::Vec<Tag> expanded(Tag, LaneBits<hn::TFromD<Tag>> bits, hn::Vec<Tag> vector,
                                 hn::Vec<Tag> others) {
  using Item = hn::TFromD<Tag>;
  if constexpr (std::is_same_v<Item, float>)
    return hn::Vec<Tag>{_mm512_mask_expand_ps(others.raw, bits, vector.raw)};
  else if constexpr (sizeof(Item) == 2)
    return hn::Vec<Tag>{_mm512_mask_expand_epi16(others.raw, bits, vector.raw)};
  else if constexpr (sizeof(Item) == 4)
    return hn::Vec<Tag>{_mm512_mask_expand_epi32(others.raw, bits, vector.raw)};
  else
    return hn::Vec<Tag>{_mm512_mask_expand_epi64(others.raw, bits, vector.raw)};
}

#elif HWY_TARGET == HWY_AVX2

/// Moves lane order[i] to lane i, 8 lanes of 32 bits.
template <typename Tag>
HWY_INLINE hn::Vec<Tag> permuted(Tag tag, const uint64_t& order, hn::Vec<Tag> vector) {
  const hn::Rebind<uint8_t, Tag> bytes;
  const auto loaded = hn::LoadU(bytes, reinterpret_cast<const uint8_t*>(&order));
  return hn::TableLookupLanes(
      vector, hn::IndicesFromVec(tag, hn::PromoteTo(hn::RebindToSigned<Tag>(), loaded)));
}

template <typename Tag>
HWY_INLINE hn::Vec<Tag> compressed(Tag tag, LaneBits<hn::TFromD<Tag>> bits, hn::Vec<Tag> vector) {
  return permuted(tag, kByteOrders.pack[bits], vector);
}

template <typename Tag>
HWY_INLINE hn::Vec<Tag> expanded(Tag tag, LaneBits<hn::TFromD<Tag>> bits, hn::Vec<Tag> vector,
                                 hn::Vec<Tag> others) {
  return hn::IfThenElse(mask_of(tag, bits), permuted(tag, kByteOrders.spread[bits], vector),
                        others);
}

#endif

}  // namespace lockstep::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif
