// Dispatches to the kernels of the fastest instruction set. Packing decides per block whether to
// walk the kept places or all items.
#include "base/simd/bit_mask.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "base/simd/bit_mask_kernels.h"

namespace lockstep {
namespace {

/// Returns the fastest kernels for one width.
const BitMaskKernels& fastest(int item_bytes) {
  return bit_mask_kernels(fastest_simd_path(), item_bytes);
}

/// Block of items that are walked in one way. It is large, because its kept items are counted
/// first.
constexpr int64_t kBlockItems = 32768;

/// Places of the kept items of a block with few of them.
struct KeptPlaces {
  std::array<uint32_t, kBlockItems / kItemsOfOneKept + kPlaceSlack> places;
  int64_t num = 0;
};

/// Calls sparse(places, first, num_before) or dense(bits, first, num, num_before) for each block in
/// turn. Both return how many items are kept; so does this function.
template <typename Sparse, typename Dense>
int64_t walk_blocks(const uint8_t* bits, int64_t num_items, const Sparse& sparse,
                    const Dense& dense) {
  // Counting does not depend on the width of the items.
  const BitMaskKernels& kernels = fastest(sizeof(uint32_t));
  KeptPlaces found;
  int64_t num_kept = 0;
  for (int64_t first = 0; first < num_items; first += kBlockItems) {
    const int64_t num = std::min(kBlockItems, num_items - first);
    const uint8_t* const here = bits + first / 8;
    if (is_sparse(kernels.count_kept(here, num), num)) {
      found.num = kernels.find_kept(here, num, found.places.data());
      sparse(found, first, num_kept);
      num_kept += found.num;
    } else {
      num_kept += dense(here, first, num, num_kept);
    }
  }
  return num_kept;
}

/// Packs block by block.
template <typename Item>
int64_t pack_items(const void* items, const uint8_t* bits, int64_t num_items, void* packed) {
  const auto* const values = static_cast<const Item*>(items);
  auto* const values_K = static_cast<Item*>(packed);
  return walk_blocks(
      bits, num_items,
      [&](const KeptPlaces& kept, int64_t first, int64_t begin_K) {
        for (int64_t i = 0; i < kept.num; ++i)
          values_K[begin_K + i] = values[first + kept.places[i]];
      },
      [&](const uint8_t* here, int64_t first, int64_t num, int64_t begin_K) {
        return fastest(sizeof(Item)).pack_kept(values + first, here, num, values_K + begin_K);
      });
}

template <bool kZeroOthers, typename Item>
int64_t unpack_items(const void* packed, const uint8_t* bits, int64_t num_items, void* items) {
  const auto* const values_K = static_cast<const Item*>(packed);
  auto* const values = static_cast<Item*>(items);
  return walk_blocks(
      bits, num_items,
      [&](const KeptPlaces& kept, int64_t first, int64_t begin_K) {
        // Few kept items: zero the block, then place them.
        if (kZeroOthers)
          std::fill_n(values + first, std::min(kBlockItems, num_items - first), Item{0});
        for (int64_t i = 0; i < kept.num; ++i)
          values[first + kept.places[i]] = values_K[begin_K + i];
      },
      [&](const uint8_t* here, int64_t first, int64_t num, int64_t begin_K) {
        return fastest(sizeof(Item)).unpack_kept(values_K + begin_K, here, num, values + first);
      });
}

/// Calls function(Item{}) with the unsigned integer of this width.
template <typename Function>
int64_t with_item(int item_bytes, const Function& function) {
  check(item_bytes == 2 || item_bytes == 4 || item_bytes == 8, "items have 2, 4 or 8 bytes");
  if (item_bytes == 2) return function(uint16_t{});
  return item_bytes == 4 ? function(uint32_t{}) : function(uint64_t{});
}

}  // namespace

void drop_range(uint8_t* bits, int64_t first, int64_t num) {
  if (num <= 0) return;
  uint8_t* const first_byte = bits + first / 8;
  uint8_t* const last_byte = bits + (first + num - 1) / 8;
  // Bits of the first and the last byte that stay.
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
  return with_item(item_bytes, [&](auto item) {
    return pack_items<decltype(item)>(items, bits, num_items, packed);
  });
}

int64_t unpack_kept(const void* packed, const uint8_t* bits, int64_t num_items, int item_bytes,
                    void* items) {
  return with_item(item_bytes, [&](auto item) {
    return unpack_items</*kZeroOthers=*/true, decltype(item)>(packed, bits, num_items, items);
  });
}

int64_t put_kept(const void* packed, const uint8_t* bits, int64_t num_items, int item_bytes,
                 void* items) {
  return with_item(item_bytes, [&](auto item) {
    return unpack_items</*kZeroOthers=*/false, decltype(item)>(packed, bits, num_items, items);
  });
}

int64_t find_kept(const uint8_t* bits, int64_t num_items, uint32_t* places) {
  return fastest(sizeof(uint32_t)).find_kept(bits, num_items, places);
}

/// Returns the num_items <= 8 bits from `first` on in the low bits of a byte.
static uint8_t bits_at(const uint8_t* bits, int64_t first, int64_t num_items) {
  const int64_t shift = first % 8;
  unsigned found = bits[first / 8] >> shift;
  if (shift + num_items > 8) found |= static_cast<unsigned>(bits[first / 8 + 1]) << (8 - shift);
  return static_cast<uint8_t>(found & ((1U << num_items) - 1));
}

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
