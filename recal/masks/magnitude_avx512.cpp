#include <algorithm>
#include <bit>

#include "base/simd/avx512.h"
#include "base/simd/bit_mask_kernels.h"
#include "recal/masks/magnitude_kernels.h"

namespace lockstep::recal {

#if defined(__x86_64__)

// The magnitudes of a bracket are compressed into `inside` in their order, so all paths give the
// same candidates.
namespace {

using avx512::Lanes;
using avx512::part_of;

/// Handles 64 elements per round; the portable kernel does the rest. One unsigned comparison tests
/// the bracket: found - lowest < width. The difference wraps around for values below `lowest`.
template <typename Bits>
LOCKSTEP_AVX512 BracketCounts collect(const Bits* items, const uint8_t* kept, int64_t num_items,
                                      const Bracket<Bits>& bracket, Bits* inside, int64_t room) {
  using L = Lanes<Bits>;
  const __m512i magnitude_bits = L::all(kMagnitudeBits<Bits>);
  const __m512i lowest = L::all(bracket.lowest);
  const __m512i width = L::all(static_cast<Bits>(bracket.highest - bracket.lowest + 1));
  BracketCounts counts;
  int64_t first = 0;
  for (; first + kWordItems <= num_items; first += kWordItems) {
    const uint64_t word = word_of(kept, first);
    if (word == 0) continue;
    prefetch_ahead(items + first);
    uint64_t below = 0;
    for (int lane = 0; lane < kWordItems; lane += L::kNum) {
      const __m512i found =
          _mm512_and_si512(_mm512_loadu_si512(items + first + lane), magnitude_bits);
      const auto k = part_of<Bits>(word, lane);
      below |= static_cast<uint64_t>(L::less(k, found, lowest)) << lane;
      const auto in = L::less(k, L::sub(found, lowest), width);
      if (in == 0) continue;
      // The store may write a full register: `inside` has kCollectSlack spare elements.
      if (counts.num_inside < room)
        _mm512_storeu_si512(inside + counts.num_inside, L::compress(in, found));
      counts.num_inside += std::popcount(in);
    }
    counts.num_below += std::popcount(below);
  }
  const int64_t num_stored = std::min(counts.num_inside, room);
  const BracketCounts rest =
      portable_magnitude_kernels<Bits>().collect(items + first, kept + first / 8, num_items - first,
                                                 bracket, inside + num_stored, room - num_stored);
  return {counts.num_below + rest.num_below, counts.num_inside + rest.num_inside};
}

template <typename Bits>
LOCKSTEP_AVX512 int64_t drop_below(const Bits* items, uint8_t* kept, int64_t num_items, Bits limit,
                                   int64_t num_ties) {
  using L = Lanes<Bits>;
  const __m512i magnitude_bits = L::all(kMagnitudeBits<Bits>);
  const __m512i limits = L::all(limit);
  int64_t num_left = num_ties;
  int64_t first = 0;
  for (; first + kWordItems <= num_items; first += kWordItems) {
    const uint64_t word = word_of(kept, first);
    if (word == 0) continue;
    prefetch_ahead(items + first);
    uint64_t above = 0;
    uint64_t equal = 0;
    for (int lane = 0; lane < kWordItems; lane += L::kNum) {
      const __m512i found =
          _mm512_and_si512(_mm512_loadu_si512(items + first + lane), magnitude_bits);
      const auto k = part_of<Bits>(word, lane);
      above |= static_cast<uint64_t>(L::less(k, limits, found)) << lane;
      equal |= static_cast<uint64_t>(L::equal(k, found, limits)) << lane;
    }
    const uint64_t kept_ties = without_first(equal, num_left);
    num_left -= std::popcount(equal ^ kept_ties);
    put_word(kept, first, above | kept_ties);
  }
  return num_ties - num_left +
         portable_magnitude_kernels<Bits>().drop_below(items + first, kept + first / 8,
                                                       num_items - first, limit, num_left);
}

}  // namespace

template <typename Bits>
const MagnitudeKernels<Bits>& avx512_magnitude_kernels() {
  static constexpr MagnitudeKernels<Bits> kKernels{collect<Bits>, drop_below<Bits>};
  return kKernels;
}

#else

template <typename Bits>
const MagnitudeKernels<Bits>& avx512_magnitude_kernels() {
  return portable_magnitude_kernels<Bits>();
}

#endif

template const MagnitudeKernels<uint16_t>& avx512_magnitude_kernels<uint16_t>();
template const MagnitudeKernels<uint32_t>& avx512_magnitude_kernels<uint32_t>();
template const MagnitudeKernels<uint64_t>& avx512_magnitude_kernels<uint64_t>();

}  // namespace lockstep::recal
