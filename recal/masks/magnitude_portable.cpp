#include <bit>

#include "base/simd/bit_mask.h"
#include "recal/masks/magnitude_kernels.h"

namespace lockstep::recal {
// Kernels for any processor, one byte of the mask at a time. They also handle the last elements for
// the AVX kernels. So `kept` may start at any byte of a mask.
namespace {

template <typename Bits>
BracketCounts collect(const Bits* items, const uint8_t* kept, int64_t num_items,
                      const Bracket<Bits>& bracket, Bits* inside, int64_t room) {
  BracketCounts counts;
  for (int64_t first = 0; first < num_items; first += 8)
    // byte &= byte - 1 clears the lowest set bit: the loop visits kept elements only.
    for (unsigned byte = kept[first / 8]; byte != 0; byte &= byte - 1) {
      const Bits found = magnitude(items[first + std::countr_zero(byte)]);
      if (found < bracket.lowest) ++counts.num_below;
      if (found < bracket.lowest || found > bracket.highest) continue;
      if (counts.num_inside < room) inside[counts.num_inside] = found;
      ++counts.num_inside;
    }
  return counts;
}

template <typename Bits>
int64_t drop_below(const Bits* items, uint8_t* kept, int64_t num_items, Bits limit,
                   int64_t num_ties) {
  int64_t num_left = num_ties;
  for (int64_t first = 0; first < num_items; first += 8)
    for (unsigned byte = kept[first / 8]; byte != 0; byte &= byte - 1) {
      const int64_t item = first + std::countr_zero(byte);
      const Bits found = magnitude(items[item]);
      const bool tie = found == limit && num_left > 0;
      if (tie) --num_left;
      if (tie || found < limit) drop(kept, item);
    }
  return num_ties - num_left;
}

}  // namespace

template <typename Bits>
const MagnitudeKernels<Bits>& magnitude_kernels(SimdPath path) {
  if (path == SimdPath::kAvx512) return avx512_magnitude_kernels<Bits>();
  return path == SimdPath::kAvx2 ? avx2_magnitude_kernels<Bits>()
                                 : portable_magnitude_kernels<Bits>();
}

template <typename Bits>
const MagnitudeKernels<Bits>& portable_magnitude_kernels() {
  static constexpr MagnitudeKernels<Bits> kKernels{collect<Bits>, drop_below<Bits>};
  return kKernels;
}

template const MagnitudeKernels<uint16_t>& magnitude_kernels<uint16_t>(SimdPath);
template const MagnitudeKernels<uint32_t>& magnitude_kernels<uint32_t>(SimdPath);
template const MagnitudeKernels<uint64_t>& magnitude_kernels<uint64_t>(SimdPath);
template const MagnitudeKernels<uint16_t>& portable_magnitude_kernels<uint16_t>();
template const MagnitudeKernels<uint32_t>& portable_magnitude_kernels<uint32_t>();
template const MagnitudeKernels<uint64_t>& portable_magnitude_kernels<uint64_t>();

}  // namespace lockstep::recal
