// Kernels of bit masks: words of 64 items by vectors where these help, the rest one by one.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "base/simd/bit_mask_kernels.cpp"
#include "base/simd/targets.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <type_traits>

#include "base/error.h"
#include "base/simd/bit_mask.h"
#include "base/simd/bit_mask_kernels.h"
#include "base/simd/lanes.h"

HWY_BEFORE_NAMESPACE();

namespace lockstep::HWY_NAMESPACE {
namespace {

int64_t count_kept(const uint8_t* bits, int64_t num_items) { return count_set(bits, num_items); }

/// Sets bits by value. The sign bit is masked out, so that -0 counts as zero.
template <typename Item>
void keep_nonzero(const void* items, int64_t num_items, uint8_t* bits) {
  using Signed = std::make_signed_t<Item>;
  constexpr Signed kMagnitude = std::numeric_limits<Signed>::max();
  for_words(num_items, [&](int64_t first, int64_t num, auto is_whole) {
    const auto* values = static_cast<const Signed*>(items) + first;
    uint64_t word = 0;
    if constexpr (kHasVectors && is_whole) {
      prefetch_ahead(values);
      const SignedLanes<Item> lanes;
      for (int lane = 0; lane < kWordItems; lane += kNumLanes<Item>) {
        const auto found = hn::And(hn::LoadU(lanes, values + lane), hn::Set(lanes, kMagnitude));
        word |= bits_of(lanes, hn::Gt(found, hn::Zero(lanes))) << lane;
      }
    } else {
      for (int64_t i = 0; i < num; ++i) word |= uint64_t{(values[i] & kMagnitude) != 0} << i;
    }
    put_word(bits + first / 8, word, num);
  });
}

/// Zeroes pruned items. Nothing is written if they are +0 already, as in most steps. Reading alone
/// takes half the time of reading and writing.
template <typename Item>
void zero_pruned(void* items, const uint8_t* bits, int64_t num_items) {
  for_words(num_items, [&](int64_t first, int64_t num, auto is_whole) {
    auto* values = static_cast<Item*>(items) + first;
    const uint64_t kept = word_of(bits + first / 8, num);
    // Words without pruned items are skipped without reading the items.
    if (~kept == 0) return;
    if constexpr (kHasVectors && is_whole) {
      prefetch_ahead(values);
      const Lanes<Item> lanes;
      for (int lane = 0; lane < kWordItems; lane += kNumLanes<Item>) {
        const auto pruned = mask_of(lanes, part_of<Item>(~kept, lane));
        const auto found = hn::LoadU(lanes, values + lane);
        if (has_nonzero(lanes, pruned, found))
          hn::StoreU(hn::IfThenZeroElse(pruned, found), lanes, values + lane);
      }
    } else {
      for (int64_t i = 0; i < num; ++i)
        // 0 - bit is all ones for a kept item and 0 for a pruned one.
        values[i] = static_cast<Item>(values[i] & (Item{0} - static_cast<Item>((kept >> i) & 1)));
    }
  });
}

/// Packs kept items. Without an instruction for it they are found by their bits, which is fast if
/// few are kept.
template <typename Item>
int64_t pack_kept(const void* items, const uint8_t* bits, int64_t num_items, void* packed) {
  auto* out = static_cast<Item*>(packed);
  for_words(num_items, [&](int64_t first, int64_t num, auto is_whole) {
    const auto* values = static_cast<const Item*>(items) + first;
    uint64_t kept = word_of(bits + first / 8, num);
    prefetch_ahead(values);
    if constexpr (kHasCompress && is_whole) {
      const Lanes<Item> lanes;
      for (int lane = 0; lane < kWordItems; lane += kNumLanes<Item>) {
        const auto here = part_of<Item>(kept, lane);
        const int num_here = std::popcount(here);
        // Stores only the kept lanes, because `packed` has no room for more.
        hn::BlendedStore(compressed(lanes, here, hn::LoadU(lanes, values + lane)),
                         hn::FirstN(lanes, static_cast<size_t>(num_here)), lanes, out);
        out += num_here;
      }
    } else {
      // kept &= kept - 1 removes the lowest set bit.
      for (; kept != 0; kept &= kept - 1) *out++ = values[std::countr_zero(kept)];
    }
  });
  return out - static_cast<Item*>(packed);
}

template <typename Item>
int64_t unpack_kept(const void* packed, const uint8_t* bits, int64_t num_items, void* items) {
  const auto* kept_items = static_cast<const Item*>(packed);
  for_words(num_items, [&](int64_t first, int64_t num, auto is_whole) {
    auto* values = static_cast<Item*>(items) + first;
    uint64_t kept = word_of(bits + first / 8, num);
    if constexpr (kHasExpand<Item> && is_whole) {
      const Lanes<Item> lanes;
      for (int lane = 0; lane < kWordItems; lane += kNumLanes<Item>) {
        const auto here = part_of<Item>(kept, lane);
        const int num_here = std::popcount(here);
        const auto first_lanes = hn::FirstN(lanes, static_cast<size_t>(num_here));
        const auto loaded = hn::MaskedLoad(first_lanes, lanes, kept_items);
        hn::StoreU(expanded(lanes, here, loaded, hn::Zero(lanes)), lanes, values + lane);
        kept_items += num_here;
      }
    } else {
      std::fill_n(values, num, Item{0});
      for (; kept != 0; kept &= kept - 1) values[std::countr_zero(kept)] = *kept_items++;
    }
  });
  return kept_items - static_cast<const Item*>(packed);
}

/// Finds the kept places. Two places are written per word, even if it has fewer. Their number
/// cannot be predicted, and a mispredicted branch costs more than two stores.
int64_t find_kept(const uint8_t* bits, int64_t num_items, uint32_t* places) {
  uint32_t* out = places;
  for_words(num_items, [&](int64_t first, int64_t num, auto) {
    uint64_t kept = word_of(bits + first / 8, num);
    const int num_kept = std::popcount(kept);
    const auto place = static_cast<uint32_t>(first);
    out[0] = place + static_cast<uint32_t>(std::countr_zero(kept));
    kept &= kept - 1;
    out[1] = place + static_cast<uint32_t>(std::countr_zero(kept));
    for (int i = 2; i < num_kept; ++i) {
      kept &= kept - 1;
      out[i] = place + static_cast<uint32_t>(std::countr_zero(kept));
    }
    out += num_kept;
  });
  return out - places;
}

template <typename Item>
constexpr BitMaskKernels kKernels{count_kept,      keep_nonzero<Item>, zero_pruned<Item>,
                                  pack_kept<Item>, unpack_kept<Item>,  find_kept};

}  // namespace
}  // namespace lockstep::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace lockstep {

const BitMaskKernels& bit_mask_kernels(SimdPath path, int item_bytes) {
  check(item_bytes == 2 || item_bytes == 4 || item_bytes == 8, "items have 2, 4 or 8 bytes");
  if (item_bytes == 2) return LOCKSTEP_OF_PATH(path, kKernels<uint16_t>);
  return item_bytes == 4 ? LOCKSTEP_OF_PATH(path, kKernels<uint32_t>)
                         : LOCKSTEP_OF_PATH(path, kKernels<uint64_t>);
}

}  // namespace lockstep

#endif
