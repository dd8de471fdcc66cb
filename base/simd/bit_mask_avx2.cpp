// AVX2 path: 64 items per mask word. The portable path does the rest of the last word.
#include <bit>
#include <limits>
#include <type_traits>

#include "base/simd/avx2.h"
#include "base/simd/bit_mask.h"
#include "base/simd/bit_mask_kernels.h"

namespace lockstep {

#if defined(__x86_64__)

namespace {

using avx2::Lanes;

/// Counts bits; with this target std::popcount is one instruction.
LOCKSTEP_AVX2 int64_t count_set(const uint8_t* bits, int64_t num_items) {
  int64_t num_kept = 0;
  int64_t first = 0;
  for (; first + kWordItems <= num_items; first += kWordItems)
    num_kept += std::popcount(word_of(bits, first));
  for (int64_t byte = first / 8; byte < num_mask_bytes(num_items); ++byte)
    num_kept += std::popcount(bits[byte]);
  return num_kept;
}

template <typename Item>
LOCKSTEP_AVX2 void keep_nonzero(const void* items, int64_t num_items, uint8_t* bits) {
  using L = Lanes<Item>;
  const auto* values = static_cast<const Item*>(items);
  // Without the sign bit, so that -0 counts as zero.
  const __m256i magnitude =
      L::all(static_cast<Item>(std::numeric_limits<std::make_signed_t<Item>>::max()));
  const __m256i zeros = _mm256_setzero_si256();
  int64_t first = 0;
  for (; first + kWordItems <= num_items; first += kWordItems) {
    prefetch_ahead(values + first);
    uint64_t word = 0;
    for (int lane = 0; lane < kWordItems; lane += L::kNum) {
      const __m256i found = _mm256_and_si256(avx2::load(values + first + lane), magnitude);
      word |= L::bits_of(L::greater(found, zeros)) << lane;
    }
    put_word(bits, first, word);
  }
  portable_bit_mask_kernels<Item>().keep_nonzero(values + first, num_items - first,
                                                 bits + first / 8);
}

/// Zeroes pruned items. As on the AVX-512 path, nothing is written if they are +0 already.
template <typename Item>
LOCKSTEP_AVX2 void zero_pruned(void* items, const uint8_t* bits, int64_t num_items) {
  using L = Lanes<Item>;
  auto* values = static_cast<Item*>(items);
  int64_t first = 0;
  for (; first + kWordItems <= num_items; first += kWordItems) {
    // Words without pruned items are skipped without reading the items.
    const uint64_t pruned = ~word_of(bits, first);
    if (pruned == 0) continue;
    prefetch_ahead(values + first);
    for (int lane = 0; lane < kWordItems; lane += L::kNum) {
      const __m256i truths = L::truths_of(pruned >> lane);
      const __m256i found = avx2::load(values + first + lane);
      if (_mm256_testz_si256(truths, found) == 0)
        avx2::store(values + first + lane, _mm256_andnot_si256(truths, found));
    }
  }
  portable_bit_mask_kernels<Item>().zero_pruned(values + first, bits + first / 8,
                                                num_items - first);
}

/// Packs kept items. AVX2 has no packing instruction, so they are found by their bits, 64 at a
/// time. That is fast if few are kept.
template <typename Item>
LOCKSTEP_AVX2 int64_t pack_kept(const void* items, const uint8_t* bits, int64_t num_items,
                                void* packed) {
  const auto* values = static_cast<const Item*>(items);
  auto* out = static_cast<Item*>(packed);
  int64_t first = 0;
  for (; first + kWordItems <= num_items; first += kWordItems) {
    prefetch_ahead(values + first);
    // kept &= kept - 1 removes the lowest set bit.
    for (uint64_t kept = word_of(bits, first); kept != 0; kept &= kept - 1)
      *out++ = values[first + std::countr_zero(kept)];
  }
  return (out - static_cast<Item*>(packed)) +
         portable_bit_mask_kernels<Item>().pack_kept(values + first, bits + first / 8,
                                                     num_items - first, out);
}

template <typename Item>
LOCKSTEP_AVX2 int64_t unpack_kept(const void* packed, const uint8_t* bits, int64_t num_items,
                                  void* items) {
  const auto* kept_items = static_cast<const Item*>(packed);
  auto* out = static_cast<Item*>(items);
  const __m256i zeros = _mm256_setzero_si256();
  int64_t first = 0;
  for (; first + kWordItems <= num_items; first += kWordItems) {
    for (int lane = 0; lane < kWordItems; lane += Lanes<Item>::kNum)
      avx2::store(out + first + lane, zeros);
    for (uint64_t kept = word_of(bits, first); kept != 0; kept &= kept - 1)
      out[first + std::countr_zero(kept)] = *kept_items++;
  }
  return (kept_items - static_cast<const Item*>(packed)) +
         portable_bit_mask_kernels<Item>().unpack_kept(kept_items, bits + first / 8,
                                                       num_items - first, out + first);
}

/// Finds the kept places. Two places are written per word, even if it has fewer. Their number
/// cannot be predicted, and a mispredicted branch costs more than two stores.
LOCKSTEP_AVX2 int64_t find_set(const uint8_t* bits, int64_t num_items, uint32_t* places) {
  uint32_t* out = places;
  int64_t first = 0;
  for (; first + kWordItems <= num_items; first += kWordItems) {
    uint64_t kept = word_of(bits, first);
    const int num = std::popcount(kept);
    const auto place = static_cast<uint32_t>(first);
    out[0] = place + static_cast<uint32_t>(std::countr_zero(kept));
    kept &= kept - 1;
    out[1] = place + static_cast<uint32_t>(std::countr_zero(kept));
    for (int i = 2; i < num; ++i) {
      kept &= kept - 1;
      out[i] = place + static_cast<uint32_t>(std::countr_zero(kept));
    }
    out += num;
  }
  for (int64_t item = first; item < num_items; ++item)
    if (is_kept(bits, item)) *out++ = static_cast<uint32_t>(item);
  return out - places;
}

}  // namespace

template <typename Item>
const BitMaskKernels& avx2_bit_mask_kernels() {
  static const BitMaskKernels kernels{count_set,       keep_nonzero<Item>, zero_pruned<Item>,
                                      pack_kept<Item>, unpack_kept<Item>,  find_set};
  return kernels;
}

#else

template <typename Item>
const BitMaskKernels& avx2_bit_mask_kernels() {
  return portable_bit_mask_kernels<Item>();
}

#endif

template const BitMaskKernels& avx2_bit_mask_kernels<uint16_t>();
template const BitMaskKernels& avx2_bit_mask_kernels<uint32_t>();
template const BitMaskKernels& avx2_bit_mask_kernels<uint64_t>();

}  // namespace lockstep
