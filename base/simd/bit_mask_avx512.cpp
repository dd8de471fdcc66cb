// AVX-512 path: compress and expand instructions pack and unpack whole vectors.
#include <bit>
#include <limits>
#include <type_traits>

#include "base/simd/avx512.h"
#include "base/simd/bit_mask_kernels.h"

namespace lockstep {

#if defined(__x86_64__)

namespace {

using avx512::Lanes;
using avx512::part_of;

template <typename Item>
LOCKSTEP_AVX512 void keep_nonzero(const void* items, int64_t num_items, uint8_t* bits) {
  using L = Lanes<Item>;
  const auto* values = static_cast<const Item*>(items);
  // Without the sign bit, so that -0 counts as zero.
  const __m512i magnitude =
      L::all(static_cast<Item>(std::numeric_limits<std::make_signed_t<Item>>::max()));
  int64_t first = 0;
  for (; first + kWordItems <= num_items; first += kWordItems) {
    prefetch_ahead(values + first);
    uint64_t word = 0;
    for (int lane = 0; lane < kWordItems; lane += L::kNum)
      word |= static_cast<uint64_t>(L::test(_mm512_loadu_si512(values + first + lane), magnitude))
              << lane;
    put_word(bits, first, word);
  }
  portable_bit_mask_kernels<Item>().keep_nonzero(values + first, num_items - first,
                                                 bits + first / 8);
}

/// Zeroes pruned items. Nothing is written if they are +0 already, as in most steps. Reading alone
/// takes half the time of reading and writing.
template <typename Item>
LOCKSTEP_AVX512 void zero_pruned(void* items, const uint8_t* bits, int64_t num_items) {
  using L = Lanes<Item>;
  auto* values = static_cast<Item*>(items);
  const __m512i zeros = _mm512_setzero_si512();
  int64_t first = 0;
  for (; first + kWordItems <= num_items; first += kWordItems) {
    const uint64_t pruned = ~word_of(bits, first);
    if (pruned == 0) continue;
    prefetch_ahead(values + first);
    for (int lane = 0; lane < kWordItems; lane += L::kNum) {
      const auto k = part_of<Item>(pruned, lane);
      const __m512i found = L::load(k, values + first + lane);
      if (L::test(found, found) != 0) L::store(values + first + lane, k, zeros);
    }
  }
  portable_bit_mask_kernels<Item>().zero_pruned(values + first, bits + first / 8,
                                                num_items - first);
}

template <typename Item>
LOCKSTEP_AVX512 int64_t pack_kept(const void* items, const uint8_t* bits, int64_t num_items,
                                  void* packed) {
  using L = Lanes<Item>;
  const auto* values = static_cast<const Item*>(items);
  auto* out = static_cast<Item*>(packed);
  int64_t first = 0;
  for (; first + kWordItems <= num_items; first += kWordItems) {
    prefetch_ahead(values + first);
    const uint64_t kept = word_of(bits, first);
    for (int lane = 0; lane < kWordItems; lane += L::kNum) {
      const auto k = part_of<Item>(kept, lane);
      const int num = std::popcount(k);
      // Stores only the kept lanes, because `packed` has no room for more.
      L::store(out, avx512::first_lanes<Item>(num),
               L::compress(k, _mm512_loadu_si512(values + first + lane)));
      out += num;
    }
  }
  return (out - static_cast<Item*>(packed)) +
         portable_bit_mask_kernels<Item>().pack_kept(values + first, bits + first / 8,
                                                     num_items - first, out);
}

template <typename Item>
LOCKSTEP_AVX512 int64_t unpack_kept(const void* packed, const uint8_t* bits, int64_t num_items,
                                    void* items) {
  using L = Lanes<Item>;
  const auto* kept_items = static_cast<const Item*>(packed);
  auto* out = static_cast<Item*>(items);
  int64_t first = 0;
  for (; first + kWordItems <= num_items; first += kWordItems) {
    const uint64_t kept = word_of(bits, first);
    for (int lane = 0; lane < kWordItems; lane += L::kNum) {
      const auto k = part_of<Item>(kept, lane);
      const int num = std::popcount(k);
      _mm512_storeu_si512(out + first + lane,
                          L::expand(k, L::load(avx512::first_lanes<Item>(num), kept_items)));
      kept_items += num;
    }
  }
  return (kept_items - static_cast<const Item*>(packed)) +
         portable_bit_mask_kernels<Item>().unpack_kept(kept_items, bits + first / 8,
                                                       num_items - first, out + first);
}

}  // namespace

template <typename Item>
const BitMaskKernels& avx512_bit_mask_kernels() {
  // Counting and finding use the AVX2 kernels.
  const BitMaskKernels& narrower = avx2_bit_mask_kernels<Item>();
  static const BitMaskKernels kernels{narrower.count_kept, keep_nonzero<Item>, zero_pruned<Item>,
                                      pack_kept<Item>,     unpack_kept<Item>,  narrower.find_kept};
  return kernels;
}

#else

template <typename Item>
const BitMaskKernels& avx512_bit_mask_kernels() {
  return portable_bit_mask_kernels<Item>();
}

#endif

template const BitMaskKernels& avx512_bit_mask_kernels<uint16_t>();
template const BitMaskKernels& avx512_bit_mask_kernels<uint32_t>();
template const BitMaskKernels& avx512_bit_mask_kernels<uint64_t>();

}  // namespace lockstep
