#pragma once

#include <cstdint>
#include <span>

#include "base/simd/simd.h"

namespace lockstep::recal {

/// Elements of one weight that are pruned together with other parts: floats read as integers, and
/// the bits of those still kept (base/simd/bit_mask.h).
template <typename Bits>
struct MagnitudePart {
  const Bits* items = nullptr;
  uint8_t* kept = nullptr;
  int64_t num_items = 0;
};

/// Limit of a pruning step: every magnitude below it is dropped, and the first num_ties equal to
/// it.
template <typename Bits>
struct Threshold {
  Bits limit = 0;
  int64_t num_ties = 0;
};

/// Finds the threshold of the num_smallest smallest magnitudes among all parts' kept elements.
/// num_smallest of them are below the limit or among the first num_ties that equal it.
/// 0 < num_smallest <= kept elements. NaN is the largest. Exact, and the same on every machine and
/// SIMD path.
///
/// Method: a fixed sample of the elements brackets the threshold between two magnitudes. One pass
/// counts the elements below and collects those inside the bracket. Few candidates remain for a
/// selection. If the sample missed the threshold or ties fill the bracket, histograms over ever
/// smaller brackets find it. Source: Floyd and Rivest, "Algorithm 489: SELECT" (1975).
///
/// Cost: one pass at memory speed; memory for a few per cent of the elements.
template <typename Bits>
Threshold<Bits> find_threshold(std::span<const MagnitudePart<Bits>> parts, int64_t num_smallest,
                               SimdPath path = fastest_simd_path());

/// Drops the num_smallest smallest kept elements of all parts. On ties the first part comes first,
/// and within a part the lowest index. 0 <= num_smallest <= kept elements.
template <typename Bits>
void drop_smallest(std::span<const MagnitudePart<Bits>> parts, int64_t num_smallest,
                   SimdPath path = fastest_simd_path());

}  // namespace lockstep::recal
