#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/bits/simd.h"

namespace lockstep::recal {

/// Magnitudes as integers: a float's bits without its sign. They rise with the magnitude, and NaN
/// is above all, so that the order is total. Bits: uint16_t, uint32_t or uint64_t.
template <typename Bits>
constexpr Bits kMagnitudeBits =
    static_cast<Bits>(std::numeric_limits<std::make_signed_t<Bits>>::max());

template <typename Bits>
constexpr Bits magnitude(Bits bits) {
  return static_cast<Bits>(bits & kMagnitudeBits<Bits>);
}

/// Magnitudes from lowest to highest, both counted in.
template <typename Bits>
struct Bracket {
  Bits lowest = 0;
  Bits highest = kMagnitudeBits<Bits>;
};

struct BracketCounts {
  int64_t num_below = 0;
  int64_t num_inside = 0;
};

/// The two passes over weights of which mask updates consist. `kept`: bits as in
/// base/bits/bit_mask.h; pruned items take no part.
template <typename Bits>
struct MagnitudeKernels {
  /// Counts the magnitudes below and inside the bracket. Those inside are written to `inside`, in
  /// order, as far as they fit; at least `room` do, and the memory has room for
  /// room + kCollectSlack.
  BracketCounts (*collect)(const Bits* items, const uint8_t* kept, int64_t num_items,
                           const Bracket<Bits>& bracket, Bits* inside, int64_t room);

  /// Drops all magnitudes below the limit, and of those that equal it the first num_ties. Returns
  /// how many of the latter.
  int64_t (*drop_below)(const Bits* items, uint8_t* kept, int64_t num_items, Bits limit,
                        int64_t num_ties);
};

constexpr int64_t kCollectSlack = 64;

/// The kernels of a path that simd_paths() lists.
template <typename Bits>
const MagnitudeKernels<Bits>& magnitude_kernels(SimdPath path);

template <typename Bits>
const MagnitudeKernels<Bits>& portable_magnitude_kernels();
template <typename Bits>
const MagnitudeKernels<Bits>& avx2_magnitude_kernels();
template <typename Bits>
const MagnitudeKernels<Bits>& avx512_magnitude_kernels();

}  // namespace lockstep::recal
