#pragma once

#include <cstdint>

namespace lockstep {

/// Copies num_items bits of one bit mask (base/bits/bit_mask.h), from from_item on, to bits
/// to_item, to_item + 1, ... of another. Other bits stay. The masks must not overlap.
///
/// This builds the mask of a flat buffer from those of its parameters, which need not begin at a
/// byte. It also cuts out the part of a bucket.
void copy_bits(const uint8_t* from_bits, int64_t from_item, int64_t num_items, uint8_t* to_bits,
               int64_t to_item);

}  // namespace lockstep
