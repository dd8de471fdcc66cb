#pragma once

#include <cstdint>

namespace lockstep {

/// Masks as bits: item i is bit i % 8 of byte i / 8, 1 = kept, 0 = pruned; bits behind the end are
/// 0 (all functions here expect that and leave it so).
///
/// Symbols: n = num_items; `bits` has num_mask_bytes(n) bytes. Items are 2, 4 or 8 bytes wide
/// (`item_bytes`; another width is a bug) and aligned to it. Nothing here allocates or knows
/// tensors. Results are the same bits on every machine; what the processor offers is used
/// (base/bits/simd.h). Any thread, on memory of its own.

inline int64_t num_mask_bytes(int64_t num_items) { return (num_items + 7) / 8; }

inline bool is_kept(const uint8_t* bits, int64_t item) {
  return ((bits[item >> 3] >> (item & 7)) & 1) != 0;
}
inline void drop(uint8_t* bits, int64_t item) {
  bits[item >> 3] = static_cast<uint8_t>(bits[item >> 3] & ~(1U << (item & 7)));
}

/// Items first to first + num are pruned.
void drop_range(uint8_t* bits, int64_t first, int64_t num);

/// All n items kept.
void keep_all(uint8_t* bits, int64_t num_items);
/// Restores the promise about bits behind the end, after bits were written from outside.
void clear_behind_end(uint8_t* bits, int64_t num_items);
int64_t count_kept(const uint8_t* bits, int64_t num_items);

/// bits = items that are not zero, read as floats: -0 is zero, NaN is not.
void keep_nonzero(const void* items, int64_t num_items, int item_bytes, uint8_t* bits);

/// Pruned items become +0 (all bits 0), whatever they were; kept ones are not touched.
void zero_pruned(void* items, const uint8_t* bits, int64_t num_items, int item_bytes);

/// The kept items, in order, close together in `packed`. Returns how many. `packed` has room for
/// count_kept() items and does not overlap `items`.
int64_t pack_kept(const void* items, const uint8_t* bits, int64_t num_items, int item_bytes,
                  void* packed);

/// The inverse: kept items from `packed` in order, zeros elsewhere. Returns how many were read.
int64_t unpack_kept(const void* packed, const uint8_t* bits, int64_t num_items, int item_bytes,
                    void* items);

/// The same where nobody reads the others: they stay, or become zeros. Where few are kept, memory
/// without any is not touched.
int64_t put_kept(const void* packed, const uint8_t* bits, int64_t num_items, int item_bytes,
                 void* items);

/// Items that find_kept() may write behind the last place.
inline constexpr int64_t kPlaceSlack = 2;

/// is_sparse() is true if at most one item in so many is kept.
inline constexpr int64_t kItemsOfOneKept = 64;

/// Where the kept items stand, ascending. Returns how many. n < 2^32; `places` has room for
/// count_kept() and kPlaceSlack.
int64_t find_kept(const uint8_t* bits, int64_t num_items, uint32_t* places);

/// Whether so few are kept that a walk over find_kept()'s places is faster than one over all items:
/// measured on 20 M floats, 80 MB. At one in 64 three quarters of the cache lines hold no kept
/// item.
inline bool is_sparse(int64_t num_kept, int64_t num_items) {
  return kItemsOfOneKept * num_kept <= num_items;
}

}  // namespace lockstep
