#pragma once

#include <cstdint>
#include <span>

#include "base/bits/simd.h"

namespace lockstep::recal {

/// Items to be pruned together with others: floats read as integers, and which of them are still
/// kept (base/bits/bit_mask.h).
template <typename Bits>
struct MagnitudePart {
  const Bits* items = nullptr;
  uint8_t* kept = nullptr;
  int64_t num_items = 0;
};

/// Drops these: every magnitude below the limit, and the first num_ties that equal it.
template <typename Bits>
struct Threshold {
  Bits limit = 0;
  int64_t num_ties = 0;
};

/// Where the num_smallest smallest magnitudes of all parts' kept items end: num_smallest of them
/// are below the limit or among the first num_ties that equal it. 0 < num_smallest <= kept items.
/// NaN is the largest. Exact, and the same on every machine and path.
///
/// Method: a fixed sample of the items brackets the threshold between two magnitudes, so closely
/// that one pass over the items, which counts those below and collects those inside, leaves few
/// candidates for a selection. If the sample misled (or ties fill the bracket), histograms over
/// ever smaller brackets take over. Source: the bracketing is that of Floyd and Rivest's SELECT
/// (1975).
///
/// Cost: one pass at memory speed, candidates of a few per cent of the items in memory.
template <typename Bits>
Threshold<Bits> find_threshold(std::span<const MagnitudePart<Bits>> parts, int64_t num_smallest,
                               SimdPath path = fastest_simd_path());

/// Drops the num_smallest smallest kept items of all parts; of equal ones those of the first part
/// first, in a part those of the lowest index. 0 <= num_smallest <= kept items.
template <typename Bits>
void drop_smallest(std::span<const MagnitudePart<Bits>> parts, int64_t num_smallest,
                   SimdPath path = fastest_simd_path());

}  // namespace lockstep::recal
