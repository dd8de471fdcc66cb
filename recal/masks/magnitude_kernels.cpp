// Kernels of magnitudes: words of 64 elements by vectors, the rest one by one. The candidates of a
// bracket are stored in order, so all paths give the same.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "recal/masks/magnitude_kernels.cpp"
#include "base/simd/targets.h"

#include "recal/masks/magnitude_kernels.h"

#include <bit>

#include "base/simd/bit_mask.h"
#include "base/simd/bit_mask_kernels.h"
#include "base/simd/lanes.h"

HWY_BEFORE_NAMESPACE();

namespace lockstep::recal::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
namespace lanes = lockstep::HWY_NAMESPACE;

/// Bits of a word's elements below and above a bracket.
struct Outside {
  uint64_t below = 0, above = 0;
};

/// Loads magnitudes as signed integers, which compare quickly. They have no sign bit, so the order
/// is the same.
template <typename Bits>
HWY_INLINE auto magnitudes_at(const Bits* items) {
  using Signed = std::make_signed_t<Bits>;
  const lanes::SignedLanes<Bits> tag;
  return hn::And(hn::LoadU(tag, reinterpret_cast<const Signed*>(items)),
                 hn::Set(tag, static_cast<Signed>(kMagnitudeBits<Bits>)));
}

/// Compares a word: all of its elements by vectors, otherwise the kept ones.
template <bool kWhole, typename Bits>
HWY_INLINE Outside compare(const Bits* items, uint64_t kept, const Bracket<Bits>& bracket) {
  Outside outside;
  if constexpr (kWhole && lanes::kHasVectors) {
    prefetch_ahead(items);
    using Signed = std::make_signed_t<Bits>;
    const lanes::SignedLanes<Bits> tag;
    for (int lane = 0; lane < kWordItems; lane += lanes::kNumLanes<Bits>) {
      const auto found = magnitudes_at(items + lane);
      const auto below = hn::Lt(found, hn::Set(tag, static_cast<Signed>(bracket.lowest)));
      const auto above = hn::Gt(found, hn::Set(tag, static_cast<Signed>(bracket.highest)));
      outside.below |= lanes::bits_of(tag, below) << lane;
      outside.above |= lanes::bits_of(tag, above) << lane;
    }
  } else {
    // left &= left - 1 clears the lowest set bit: the loop visits kept elements only.
    for (uint64_t left = kept; left != 0; left &= left - 1) {
      const int item = std::countr_zero(left);
      const Bits found = magnitude(items[item]);
      outside.below |= uint64_t{found < bracket.lowest} << item;
      outside.above |= uint64_t{found > bracket.highest} << item;
    }
  }
  return outside;
}

template <typename Bits>
BracketCounts collect(const Bits* all_items, const uint8_t* kept, int64_t num_items,
                      const Bracket<Bits>& bracket, Bits* inside, int64_t room) {
  BracketCounts counts;
  for_words(num_items, [&](int64_t first, int64_t num, auto is_whole) {
    const Bits* items = all_items + first;
    const uint64_t word = word_of(kept + first / 8, num);
    // Masks at high sparsity have many empty words: their weights are not even loaded.
    if (word == 0) return;
    const Outside outside = compare<is_whole>(items, word, bracket);
    counts.num_below += std::popcount(outside.below & word);
    uint64_t in = word & ~(outside.below | outside.above);
    if constexpr (lanes::kHasCompress && is_whole) {
      if (in == 0) return;
      const lanes::SignedLanes<Bits> tag;
      for (int lane = 0; lane < kWordItems; lane += lanes::kNumLanes<Bits>) {
        const auto here = lanes::part_of<Bits>(in, lane);
        if (here == 0) continue;
        // The store may write a full register: `inside` has kCollectSlack spare elements.
        if (counts.num_inside < room)
          hn::StoreU(lanes::compressed(tag, here, magnitudes_at(items + lane)), tag,
                     reinterpret_cast<std::make_signed_t<Bits>*>(inside + counts.num_inside));
        counts.num_inside += std::popcount(here);
      }
    } else {
      for (; in != 0; in &= in - 1) {
        if (counts.num_inside < room)
          inside[counts.num_inside] = magnitude(items[std::countr_zero(in)]);
        ++counts.num_inside;
      }
    }
  });
  return counts;
}

template <typename Bits>
int64_t drop_below(const Bits* items, uint8_t* kept, int64_t num_items, Bits limit,
                   int64_t num_ties) {
  int64_t num_left = num_ties;
  for_words(num_items, [&](int64_t first, int64_t num, auto is_whole) {
    const uint64_t word = word_of(kept + first / 8, num);
    if (word == 0) return;
    const Outside outside = compare<is_whole>(items + first, word, Bracket<Bits>{limit, limit});
    // Of equal magnitudes the first ones are dropped, so ties are counted in order.
    const uint64_t ties = word & ~(outside.below | outside.above);
    const uint64_t kept_ties = without_first(ties, num_left);
    num_left -= std::popcount(ties ^ kept_ties);
    put_word(kept + first / 8, (outside.above & word) | kept_ties, num);
  });
  return num_ties - num_left;
}

template <typename Bits>
constexpr MagnitudeKernels<Bits> kKernels{collect<Bits>, drop_below<Bits>};

}  // namespace
}  // namespace lockstep::recal::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace lockstep::recal {

template <typename Bits>
const MagnitudeKernels<Bits>& magnitude_kernels(SimdPath path) {
  return LOCKSTEP_OF_PATH(path, kKernels<Bits>);
}

template const MagnitudeKernels<uint16_t>& magnitude_kernels<uint16_t>(SimdPath);
template const MagnitudeKernels<uint32_t>& magnitude_kernels<uint32_t>(SimdPath);
template const MagnitudeKernels<uint64_t>& magnitude_kernels<uint64_t>(SimdPath);

}  // namespace lockstep::recal

#endif
