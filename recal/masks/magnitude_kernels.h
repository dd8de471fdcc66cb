#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/simd/simd.h"

namespace lockstep::recal {

/// Mask that removes the sign bit of a float. The remaining bits, read as an integer, grow with the
/// magnitude. NaN is above all numbers, so the order is total. Bits: uint16_t, uint32_t or
/// uint64_t.
template <typename Bits>
constexpr Bits kMagnitudeBits =
    static_cast<Bits>(std::numeric_limits<std::make_signed_t<Bits>>::max());

template <typename Bits>
constexpr Bits magnitude(Bits bits) {
  return static_cast<Bits>(bits & kMagnitudeBits<Bits>);
}

/// Range of magnitudes from lowest to highest, both inclusive.
template <typename Bits>
struct Bracket {
  Bits lowest = 0;
  Bits highest = kMagnitudeBits<Bits>;
};

struct BracketCounts {
  int64_t num_below = 0;
  int64_t num_inside = 0;
};

/// The two passes over weights that a mask update needs. `kept`: bits as in base/simd/bit_mask.h.
/// Pruned elements are ignored.
template <typename Bits>
struct MagnitudeKernels {
  /// Counts the magnitudes below and inside the bracket. Writes those inside to `inside`, in order,
  /// up to at least `room` of them. The memory must have room for room + kCollectSlack.
  BracketCounts (*collect)(const Bits* items, const uint8_t* kept, int64_t num_items,
                           const Bracket<Bits>& bracket, Bits* inside, int64_t room);

  /// Drops all magnitudes below the limit, and the first num_ties that equal it. Returns how many
  /// of the latter were dropped.
  int64_t (*drop_below)(const Bits* items, uint8_t* kept, int64_t num_items, Bits limit,
                        int64_t num_ties);
};

constexpr int64_t kCollectSlack = 64;

/// Returns the kernels of a path that simd_paths() lists.
template <typename Bits>
const MagnitudeKernels<Bits>& magnitude_kernels(SimdPath path);

}  // namespace lockstep::recal
