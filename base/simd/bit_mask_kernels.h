#pragma once

#include <cstdint>
#include <cstring>

#include "base/simd/simd.h"

/// Kernels of bit masks (base/simd/bit_mask.h), one table for each SIMD path, and their access to
/// masks in words of 64 items. Item first + i is bit i on little-endian machines. The portable path
/// does the rest after the last word.
namespace lockstep {

constexpr int64_t kWordItems = 64;

inline uint64_t word_of(const uint8_t* bits, int64_t first) {
  uint64_t word = 0;
  std::memcpy(&word, bits + first / 8, sizeof(word));
  return word;
}

inline void put_word(uint8_t* bits, int64_t first, uint64_t word) {
  std::memcpy(bits + first / 8, &word, sizeof(word));
}

/// Prefetches the line of items that the walk reaches a little later. The processor's own
/// prefetching stops at each page (a fifth faster, measured on 20 M floats).
inline void prefetch_line_ahead(const void* item) {
  constexpr int64_t kAheadBytes = 2048;
  __builtin_prefetch(static_cast<const char*>(item) + kAheadBytes);
}

/// Prefetches a word of items in the same way.
template <typename Item>
inline void prefetch_ahead(const Item* items) {
  constexpr int64_t kLineBytes = 64;
  for (int64_t i = 0; i < kWordItems; i += kLineBytes / static_cast<int64_t>(sizeof(Item)))
    prefetch_line_ahead(items + i);
}

/// Returns the word without its lowest `num` set bits.
inline uint64_t without_first(uint64_t word, int64_t num) {
  for (; num > 0 && word != 0; --num) word &= word - 1;
  return word;
}

/// One implementation of the functions of base/simd/bit_mask.h for items of one width.
struct BitMaskKernels {
  int64_t (*count_kept)(const uint8_t* bits, int64_t num_items);
  void (*keep_nonzero)(const void* items, int64_t num_items, uint8_t* bits);
  void (*zero_pruned)(void* items, const uint8_t* bits, int64_t num_items);
  int64_t (*pack_kept)(const void* items, const uint8_t* bits, int64_t num_items, void* packed);
  int64_t (*unpack_kept)(const void* packed, const uint8_t* bits, int64_t num_items, void* items);
  int64_t (*find_kept)(const uint8_t* bits, int64_t num_items, uint32_t* places);
};

/// Returns the kernels of a path from simd_paths(). item_bytes: 2, 4 or 8; another width is a bug.
const BitMaskKernels& bit_mask_kernels(SimdPath path, int item_bytes);

/// Kernels of each path; Item is uint16_t, uint32_t or uint64_t.
template <typename Item>
const BitMaskKernels& portable_bit_mask_kernels();
template <typename Item>
const BitMaskKernels& avx2_bit_mask_kernels();
template <typename Item>
const BitMaskKernels& avx512_bit_mask_kernels();

}  // namespace lockstep
