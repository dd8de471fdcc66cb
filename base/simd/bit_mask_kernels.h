#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/simd/simd.h"

/// Kernels of bit masks (base/simd/bit_mask.h), one table for each SIMD path, and their access to
/// masks in words of 64 items. Item first + i is bit i.
namespace lockstep {

static_assert(std::endian::native == std::endian::little, "a word contains bytes in their order");
constexpr int64_t kWordItems = 64;

/// Returns the word of the first num items; a whole one by default. The bits after them are 0.
inline uint64_t word_of(const uint8_t* bits, int64_t num = kWordItems) {
  uint64_t word = 0;
  std::memcpy(&word, bits, num == kWordItems ? sizeof(word) : static_cast<size_t>((num + 7) / 8));
  return word;
}

inline void put_word(uint8_t* bits, uint64_t word, int64_t num = kWordItems) {
  std::memcpy(bits, &word, num == kWordItems ? sizeof(word) : static_cast<size_t>((num + 7) / 8));
}

/// Calls function(first, num, is_whole) for each word of a mask: its first item, their number, and
/// whether it is a whole word, as std::true_type or std::false_type.
template <typename Function>
__attribute__((always_inline)) inline void for_words(int64_t num_items, Function function) {
  int64_t first = 0;
  for (; first + kWordItems <= num_items; first += kWordItems)
    function(first, kWordItems, std::true_type{});
  if (first < num_items) function(first, num_items - first, std::false_type{});
}

/// Counts bits. With the targets of x86-64, std::popcount is one instruction.
__attribute__((always_inline)) inline int64_t count_set(const uint8_t* bits, int64_t num_items) {
  int64_t num_set = 0;
  for_words(num_items, [&](int64_t first, int64_t num, auto) {
    num_set += std::popcount(word_of(bits + first / 8, num));
  });
  return num_set;
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

/// Tables for a byte of a mask. Byte i of an entry is for item i.
struct ByteOrders {
  std::array<uint64_t, 256> pack{};    ///< item of the i-th kept one
  std::array<uint64_t, 256> spread{};  ///< packed position of item i, if kept

  constexpr ByteOrders() {
    for (unsigned bits = 0; bits < 256; ++bits)
      for (unsigned item = 0, num_kept = 0; item < 8; ++item) {
        spread[bits] |= uint64_t{num_kept % 8} << (8 * item);
        if ((bits >> item & 1) != 0) pack[bits] |= uint64_t{item} << (8 * num_kept++);
      }
  }
};
inline constexpr ByteOrders kByteOrders;

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

}  // namespace lockstep
