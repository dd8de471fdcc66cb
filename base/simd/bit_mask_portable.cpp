// Portable path: one mask byte, that is eight items, at a time.
#include <algorithm>
#include <bit>
#include <limits>
#include <type_traits>

#include "base/simd/bit_mask.h"
#include "base/simd/bit_mask_kernels.h"

namespace lockstep {
namespace {

/// Returns the number of items of the byte that begins at this item.
int64_t num_in_byte(int64_t first, int64_t num_items) {
  return std::min<int64_t>(8, num_items - first);
}

int64_t count_set(const uint8_t* bits, int64_t num_items) {
  int64_t num_kept = 0;
  int64_t first = 0;
  for (; first + kWordItems <= num_items; first += kWordItems)
    num_kept += std::popcount(word_of(bits, first));
  for (int64_t byte = first / 8; byte < num_mask_bytes(num_items); ++byte)
    num_kept += std::popcount(bits[byte]);
  return num_kept;
}

/// Sets bits by value; the sign bit is masked out, so that -0 counts as zero.
template <typename Item>
void keep_nonzero(const void* items, int64_t num_items, uint8_t* bits) {
  constexpr auto kMagnitude =
      static_cast<Item>(std::numeric_limits<std::make_signed_t<Item>>::max());
  const auto* values = static_cast<const Item*>(items);
  for (int64_t first = 0; first < num_items; first += 8) {
    unsigned byte = 0;
    const int64_t num = num_in_byte(first, num_items);
    for (int64_t j = 0; j < num; ++j)
      byte |= static_cast<unsigned>((values[first + j] & kMagnitude) != 0) << j;
    bits[first / 8] = static_cast<uint8_t>(byte);
  }
}

template <typename Item>
void zero_pruned(void* items, const uint8_t* bits, int64_t num_items) {
  auto* values = static_cast<Item*>(items);
  for (int64_t first = 0; first < num_items; first += 8) {
    const unsigned byte = bits[first / 8];
    if (byte == 0xff) continue;
    const int64_t num = num_in_byte(first, num_items);
    for (int64_t j = 0; j < num; ++j)
      values[first + j] =
          // 0 - bit is all ones for a kept item and 0 for a pruned one.
          static_cast<Item>(values[first + j] & (Item{0} - static_cast<Item>((byte >> j) & 1)));
  }
}

template <typename Item>
int64_t pack_kept(const void* items, const uint8_t* bits, int64_t num_items, void* packed) {
  const auto* values = static_cast<const Item*>(items);
  auto* out = static_cast<Item*>(packed);
  int64_t num_kept = 0;
  for (int64_t first = 0; first < num_items; first += 8)
    for (unsigned byte = bits[first / 8]; byte != 0; byte &= byte - 1)
      out[num_kept++] = values[first + std::countr_zero(byte)];
  return num_kept;
}

template <typename Item>
int64_t unpack_kept(const void* packed, const uint8_t* bits, int64_t num_items, void* items) {
  const auto* kept = static_cast<const Item*>(packed);
  auto* out = static_cast<Item*>(items);
  int64_t num_kept = 0;
  for (int64_t first = 0; first < num_items; first += 8) {
    std::fill_n(out + first, num_in_byte(first, num_items), Item{0});
    for (unsigned byte = bits[first / 8]; byte != 0; byte &= byte - 1)
      out[first + std::countr_zero(byte)] = kept[num_kept++];
  }
  return num_kept;
}

int64_t find_set(const uint8_t* bits, int64_t num_items, uint32_t* places) {
  int64_t num_kept = 0;
  for (int64_t first = 0; first < num_items; first += 8)
    for (unsigned byte = bits[first / 8]; byte != 0; byte &= byte - 1)
      places[num_kept++] = static_cast<uint32_t>(first + std::countr_zero(byte));
  return num_kept;
}

}  // namespace

template <typename Item>
const BitMaskKernels& portable_bit_mask_kernels() {
  static constexpr BitMaskKernels kKernels{count_set,       keep_nonzero<Item>, zero_pruned<Item>,
                                           pack_kept<Item>, unpack_kept<Item>,  find_set};
  return kKernels;
}

template const BitMaskKernels& portable_bit_mask_kernels<uint16_t>();
template const BitMaskKernels& portable_bit_mask_kernels<uint32_t>();
template const BitMaskKernels& portable_bit_mask_kernels<uint64_t>();

}  // namespace lockstep
