#include "base/bits/kept_bits.h"

#include <algorithm>

namespace lockstep {
namespace {

/// Returns the num_items <= 8 bits from `first` on in the low bits of a byte.
uint8_t bits_at(const uint8_t* bits, int64_t first, int64_t num_items) {
  const int64_t shift = first % 8;
  unsigned found = bits[first / 8] >> shift;
  if (shift + num_items > 8) found |= static_cast<unsigned>(bits[first / 8 + 1]) << (8 - shift);
  return static_cast<uint8_t>(found & ((1U << num_items) - 1));
}

}  // namespace

void copy_bits(const uint8_t* from_bits, int64_t from_item, int64_t num_items, uint8_t* to_bits,
               int64_t to_item) {
  // One target byte at a time; its source bits may come from two bytes.
  while (num_items > 0) {
    const int64_t shift = to_item % 8;
    const int64_t num_here = std::min(8 - shift, num_items);
    // Bits of the target byte that are replaced.
    const auto room = static_cast<uint8_t>(((1U << num_here) - 1) << shift);
    uint8_t& byte = to_bits[to_item / 8];
    byte =
        static_cast<uint8_t>((byte & ~room) | (bits_at(from_bits, from_item, num_here) << shift));
    from_item += num_here;
    to_item += num_here;
    num_items -= num_here;
  }
}

}  // namespace lockstep
