#include "checkpoint/save/mask_index.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "base/bits/bit_mask.h"
#include "base/bits/kept_bits.h"
#include "base/error.h"

namespace lockstep::checkpoint {
namespace {

/// True if all items without a bit are 0 in every bit. Without a branch per item, so the compiler
/// can vectorize it.
template <typename Item>
bool pruned_are_zero(const char* bytes, const uint8_t* bits, int64_t num_items) {
  Item found = 0;
  for (int64_t i = 0; i < num_items; ++i) {
    Item item = 0;
    std::memcpy(&item, bytes + i * static_cast<int64_t>(sizeof(Item)), sizeof(Item));
    found |= is_kept(bits, i) ? Item{0} : item;
  }
  return found == 0;
}

bool pruned_are_zero(const char* bytes, const uint8_t* bits, int64_t num_items, int item_bytes) {
  switch (item_bytes) {
    case 2:
      return pruned_are_zero<uint16_t>(bytes, bits, num_items);
    case 4:
      return pruned_are_zero<uint32_t>(bytes, bits, num_items);
    default:
      return pruned_are_zero<uint64_t>(bytes, bits, num_items);
  }
}

}  // namespace

MaskIndex::MaskIndex(const at::Tensor& bits, int64_t num_elements)
    : bits_(bits.const_data_ptr<uint8_t>()),
      num_elements_(num_elements),
      num_kept_(count_kept(bits_, num_elements)) {
  check(bits.is_contiguous() && bits.numel() == num_mask_bytes(num_elements),
        "a mask has a bit for each element of its tensor");
}

int64_t MaskIndex::num_before(int64_t element) const {
  int64_t count = count_kept(bits_, element / 8 * 8);
  for (int64_t i = element / 8 * 8; i < element; ++i) count += is_kept(bits_, i) ? 1 : 0;
  return count;
}

/// Returns the element of stored element k; the end for k = K. Skips whole bytes by their number of
/// bits.
int64_t MaskIndex::element_of(int64_t stored) const {
  if (stored >= num_kept_) return num_elements_;
  int64_t byte = 0;
  for (int64_t count = 0;; ++byte) {
    const int in_byte = std::popcount(bits_[byte]);
    if (count + in_byte > stored) {
      int64_t element = 8 * byte;
      for (;; ++element)
        if (is_kept(bits_, element) && count++ == stored) return element;
    }
    count += in_byte;
  }
}

ElementRange MaskIndex::stored(const ElementRange& elements) const {
  return {num_before(elements.begin_E), num_before(elements.end_E)};
}

ElementRange MaskIndex::elements(const ElementRange& stored) const {
  return {stored.begin_E == 0 ? 0 : element_of(stored.begin_E), element_of(stored.end_E)};
}

bool MaskIndex::pack(const char* items, const ElementRange& elements, int item_bytes,
                     char* packed) const {
  // The range may start inside a mask byte; pack_kept() needs its bits from bit 0.
  const int64_t num_items = elements.num_elements();
  std::vector<uint8_t> bits(static_cast<size_t>(num_mask_bytes(num_items)), 0);
  copy_bits(bits_, elements.begin_E, num_items, bits.data(), 0);
  const char* begin = items + elements.begin_E * item_bytes;
  pack_kept(begin, bits.data(), num_items, item_bytes, packed);
  return pruned_are_zero(begin, bits.data(), num_items, item_bytes);
}

}  // namespace lockstep::checkpoint
