#include <algorithm>
#include <bit>

#include "base/simd/avx2.h"
#include "base/simd/bit_mask_kernels.h"
#include "recal/masks/magnitude_kernels.h"

namespace lockstep::recal {

#if defined(__x86_64__)

// AVX2 has no compress instruction: elements inside the bracket are few, and are copied one by one.
namespace {

using avx2::Lanes;

/// Handles 64 elements (one word of the mask) per round. The portable kernel does the rest.
template <typename Bits>
LOCKSTEP_AVX2 BracketCounts collect(const Bits* items, const uint8_t* kept, int64_t num_items,
                                    const Bracket<Bits>& bracket, Bits* inside, int64_t room) {
  using L = Lanes<Bits>;
  const __m256i magnitude_bits = L::all(kMagnitudeBits<Bits>);
  const __m256i lowest = L::all(bracket.lowest);
  const __m256i highest = L::all(bracket.highest);
  BracketCounts counts;
  int64_t first = 0;
  for (; first + kWordItems <= num_items; first += kWordItems) {
    const uint64_t word = word_of(kept, first);
    // Masks at high sparsity have many empty words: their weights are not even loaded.
    if (word == 0) continue;
    prefetch_ahead(items + first);
    uint64_t below = 0;
    uint64_t above = 0;
    for (int lane = 0; lane < kWordItems; lane += L::kNum) {
      // AVX2 compares signed integers. Magnitudes have no sign bit, so the order is the same.
      const __m256i found = _mm256_and_si256(avx2::load(items + first + lane), magnitude_bits);
      below |= L::bits_of(L::greater(lowest, found)) << lane;
      above |= L::bits_of(L::greater(found, highest)) << lane;
    }
    counts.num_below += std::popcount(below & word);
    for (uint64_t in = word & ~(below | above); in != 0; in &= in - 1) {
      if (counts.num_inside < room)
        inside[counts.num_inside] = magnitude(items[first + std::countr_zero(in)]);
      ++counts.num_inside;
    }
  }
  // The rest has fewer than 64 elements. It continues in the same buffer.
  const int64_t num_stored = std::min(counts.num_inside, room);
  const BracketCounts rest =
      portable_magnitude_kernels<Bits>().collect(items + first, kept + first / 8, num_items - first,
                                                 bracket, inside + num_stored, room - num_stored);
  return {counts.num_below + rest.num_below, counts.num_inside + rest.num_inside};
}

template <typename Bits>
LOCKSTEP_AVX2 int64_t drop_below(const Bits* items, uint8_t* kept, int64_t num_items, Bits limit,
                                 int64_t num_ties) {
  using L = Lanes<Bits>;
  const __m256i magnitude_bits = L::all(kMagnitudeBits<Bits>);
  const __m256i limits = L::all(limit);
  int64_t num_left = num_ties;
  int64_t first = 0;
  for (; first + kWordItems <= num_items; first += kWordItems) {
    const uint64_t word = word_of(kept, first);
    if (word == 0) continue;
    prefetch_ahead(items + first);
    uint64_t above = 0;
    uint64_t equal = 0;
    for (int lane = 0; lane < kWordItems; lane += L::kNum) {
      const __m256i found = _mm256_and_si256(avx2::load(items + first + lane), magnitude_bits);
      above |= L::bits_of(L::greater(found, limits)) << lane;
      equal |= L::bits_of(L::equal(found, limits)) << lane;
    }
    // Of equal magnitudes the first ones are dropped, so ties are counted in order.
    const uint64_t ties = equal & word;
    const uint64_t kept_ties = without_first(ties, num_left);
    num_left -= std::popcount(ties ^ kept_ties);
    put_word(kept, first, (above & word) | kept_ties);
  }
  return num_ties - num_left +
         portable_magnitude_kernels<Bits>().drop_below(items + first, kept + first / 8,
                                                       num_items - first, limit, num_left);
}

}  // namespace

template <typename Bits>
const MagnitudeKernels<Bits>& avx2_magnitude_kernels() {
  static constexpr MagnitudeKernels<Bits> kKernels{collect<Bits>, drop_below<Bits>};
  return kKernels;
}

#else

template <typename Bits>
const MagnitudeKernels<Bits>& avx2_magnitude_kernels() {
  return portable_magnitude_kernels<Bits>();
}

#endif

template const MagnitudeKernels<uint16_t>& avx2_magnitude_kernels<uint16_t>();
template const MagnitudeKernels<uint32_t>& avx2_magnitude_kernels<uint32_t>();
template const MagnitudeKernels<uint64_t>& avx2_magnitude_kernels<uint64_t>();

}  // namespace lockstep::recal
