#pragma once

#include <cstdint>

/// Bit masks. Item i is bit i % 8 of byte i / 8: 1 = kept, 0 = pruned. Bits after the end are 0;
/// all functions here require and preserve that.
///
/// Symbols: n = num_items; `bits` has num_mask_bytes(n) bytes. Items are 2, 4 or 8 bytes wide
/// (`item_bytes`; another width is a bug) and aligned to it. Nothing here allocates memory or uses
/// tensors. Results are the same bits on every machine, whatever instructions are used
/// (base/simd/simd.h). Any thread, on separate memory.
namespace lockstep {

inline int64_t num_mask_bytes(int64_t num_items) { return (num_items + 7) / 8; }

inline bool is_kept(const uint8_t* bits, int64_t item) {
  return ((bits[item >> 3] >> (item & 7)) & 1) != 0;
}
inline void drop(uint8_t* bits, int64_t item) {
  bits[item >> 3] = static_cast<uint8_t>(bits[item >> 3] & ~(1U << (item & 7)));
}

/// Prunes items first to first + num.
void drop_range(uint8_t* bits, int64_t first, int64_t num);

/// Keeps all n items.
void keep_all(uint8_t* bits, int64_t num_items);
/// Clears the bits after the end, which code outside may have set.
void clear_behind_end(uint8_t* bits, int64_t num_items);
/// Returns how many items are kept, if no bit after the end of the mask is set.
int64_t count_kept(const uint8_t* bits, int64_t num_items);
/// Returns how many of the items before `end` are kept, whatever bits follow.
inline int64_t kept_before(const uint8_t* bits, int64_t end) {
  int64_t count = count_kept(bits, end / 8 * 8);
  for (int64_t item = end / 8 * 8; item < end; ++item) count += is_kept(bits, item) ? 1 : 0;
  return count;
}

/// Sets bits = items that are not zero, read as floats: -0 is zero, NaN is not.
void keep_nonzero(const void* items, int64_t num_items, int item_bytes, uint8_t* bits);

/// Sets pruned items to +0 (all bits 0) and leaves kept ones unchanged.
void zero_pruned(void* items, const uint8_t* bits, int64_t num_items, int item_bytes);

/// Packs the kept items in order into `packed`. Returns their number. `packed` has room for
/// count_kept() items and does not overlap `items`.
int64_t pack_kept(const void* items, const uint8_t* bits, int64_t num_items, int item_bytes,
                  void* packed);

/// Reverses pack_kept(): kept items come from `packed` in order, the others become zero. Returns
/// the number read.
int64_t unpack_kept(const void* packed, const uint8_t* bits, int64_t num_items, int item_bytes,
                    void* items);

/// Unpacks like unpack_kept() for a caller that does not read the pruned items: they stay or become
/// zero. If few items are kept, memory without any is not touched.
int64_t put_kept(const void* packed, const uint8_t* bits, int64_t num_items, int item_bytes,
                 void* items);

/// Number of items that find_kept() may write after the last place.
inline constexpr int64_t kPlaceSlack = 2;

/// Sparsity limit: is_sparse() is true if at most one of this many items is kept.
inline constexpr int64_t kItemsOfOneKept = 64;

/// Writes the positions of the kept items, ascending, and returns their number. n < 2^32; `places`
/// has room for count_kept() + kPlaceSlack.
int64_t find_kept(const uint8_t* bits, int64_t num_items, uint32_t* places);

/// True if a walk over find_kept()'s places is faster than one over all items. Measured on 20 M
/// floats, 80 MB. At one kept item in 64, three quarters of the cache lines have none.
inline bool is_sparse(int64_t num_kept, int64_t num_items) {
  return kItemsOfOneKept * num_kept <= num_items;
}

/// Copies num_items bits of one bit mask, from from_item on, to bits to_item, to_item + 1, ... of
/// another. Other bits stay. The masks must not overlap.
///
/// This builds the mask of a flat buffer from those of its parameters, which need not begin at a
/// byte. It also cuts out the part of a bucket.
void copy_bits(const uint8_t* from_bits, int64_t from_item, int64_t num_items, uint8_t* to_bits,
               int64_t to_item);

}  // namespace lockstep
