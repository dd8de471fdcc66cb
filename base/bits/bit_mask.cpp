#include "base/bits/bit_mask.h"

#include <cstring>

#include "base/bits/bit_mask_kernels.h"
#include "base/error.h"

namespace lockstep {
namespace {

template <typename Item>
const BitMaskKernels& kernels_of(SimdPath path) {
  if (path == SimdPath::kAvx512) return avx512_bit_mask_kernels<Item>();
  return path == SimdPath::kAvx2 ? avx2_bit_mask_kernels<Item>()
                                 : portable_bit_mask_kernels<Item>();
}

const BitMaskKernels& fastest(int item_bytes) {
  return bit_mask_kernels(fastest_simd_path(), item_bytes);
}

}  // namespace

const BitMaskKernels& bit_mask_kernels(SimdPath path, int item_bytes) {
  check(item_bytes == 2 || item_bytes == 4 || item_bytes == 8, "items have 2, 4 or 8 bytes");
  if (item_bytes == 2) return kernels_of<uint16_t>(path);
  return item_bytes == 4 ? kernels_of<uint32_t>(path) : kernels_of<uint64_t>(path);
}

void drop_range(uint8_t* bits, int64_t first, int64_t num) {
  if (num <= 0) return;
  uint8_t* const first_byte = bits + first / 8;
  uint8_t* const last_byte = bits + (first + num - 1) / 8;
  // What stays of the first and of the last byte.
  const auto before = static_cast<uint8_t>((1U << (first % 8)) - 1);
  const auto behind = static_cast<uint8_t>(0xfeU << ((first + num - 1) % 8));
  if (first_byte == last_byte) {
    *first_byte = static_cast<uint8_t>(*first_byte & (before | behind));
    return;
  }
  *first_byte = static_cast<uint8_t>(*first_byte & before);
  std::memset(first_byte + 1, 0, static_cast<size_t>(last_byte - first_byte - 1));
  *last_byte = static_cast<uint8_t>(*last_byte & behind);
}

void keep_all(uint8_t* bits, int64_t num_items) {
  if (num_items > 0) std::memset(bits, 0xff, static_cast<size_t>(num_mask_bytes(num_items)));
  clear_behind_end(bits, num_items);
}

void clear_behind_end(uint8_t* bits, int64_t num_items) {
  if (num_items % 8 == 0) return;
  uint8_t& last = bits[num_items / 8];
  last = static_cast<uint8_t>(last & ((1U << (num_items % 8)) - 1));
}

int64_t count_kept(const uint8_t* bits, int64_t num_items) {
  return fastest(sizeof(uint32_t)).count_kept(bits, num_items);  // the same for all widths
}

void keep_nonzero(const void* items, int64_t num_items, int item_bytes, uint8_t* bits) {
  fastest(item_bytes).keep_nonzero(items, num_items, bits);
}

void zero_pruned(void* items, const uint8_t* bits, int64_t num_items, int item_bytes) {
  fastest(item_bytes).zero_pruned(items, bits, num_items);
}

int64_t pack_kept(const void* items, const uint8_t* bits, int64_t num_items, int item_bytes,
                  void* packed) {
  return fastest(item_bytes).pack_kept(items, bits, num_items, packed);
}

int64_t unpack_kept(const void* packed, const uint8_t* bits, int64_t num_items, int item_bytes,
                    void* items) {
  return fastest(item_bytes).unpack_kept(packed, bits, num_items, items);
}

}  // namespace lockstep
