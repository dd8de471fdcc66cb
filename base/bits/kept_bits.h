#pragma once

#include <cstdint>

namespace lockstep {

/// Copies bits from_item, from_item + 1, ... (num_items of them) of one bit mask
/// (base/bits/bit_mask.h) over bits to_item, to_item + 1, ... of another; its other bits stay. The
/// two do not overlap.
///
/// So the mask of a flat buffer is put together from those of its parameters, which need not begin
/// at a byte, and a bucket gets its part of it.
void copy_bits(const uint8_t* from_bits, int64_t from_item, int64_t num_items, uint8_t* to_bits,
               int64_t to_item);

}  // namespace lockstep
