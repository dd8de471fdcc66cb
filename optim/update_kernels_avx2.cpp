#include <array>
#include <bit>

#include "base/simd/avx2.h"
#include "base/simd/bit_mask_kernels.h"
#include "optim/rules.h"
#include "optim/update_loops.h"

namespace lockstep::optim {

#if defined(__x86_64__)

namespace {

/// LOCKSTEP_AVX2 with FMA, which all its machines have (base/simd/simd.cpp). The plain attribute
/// has no FMA, so that other sources do not contract multiplications and additions.
#define LOCKSTEP_AVX2_FMA __attribute__((target("avx2,fma,bmi,bmi2,popcnt")))

LOCKSTEP_UPDATES(LOCKSTEP_AVX2_FMA)

using Lanes = avx2::Lanes<uint32_t>;

/// Tables for packing and unpacking, which AVX2 has no instruction for. A table gives a permutation
/// for each byte of the mask. Byte i of an entry is for lane i.
struct Orders {
  std::array<uint64_t, 256> pack{};    ///< lane i comes from the i-th kept lane
  std::array<uint64_t, 256> spread{};  ///< lane i comes from its packed position, if kept

  constexpr Orders() {
    for (unsigned bits = 0; bits < 256; ++bits) {
      unsigned num_kept = 0;
      for (unsigned lane = 0; lane < 8; ++lane) {
        spread[bits] |= static_cast<uint64_t>(num_kept % 8) << (8 * lane);
        if ((bits >> lane & 1) == 0) continue;
        pack[bits] |= static_cast<uint64_t>(lane) << (8 * num_kept++);
      }
    }
  }
};
constexpr Orders kOrders;

LOCKSTEP_AVX2_FMA inline __m256 permuted(const float* from, uint64_t order) {
  const __m256i lanes = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(order)));
  return _mm256_permutevar8x32_ps(_mm256_loadu_ps(from), lanes);
}

/// Blocks with at most 1/kListed kept elements use a list of positions. It avoids branches that the
/// processor cannot predict: packing 10 % of 20 M elements then runs at memory speed.
constexpr int64_t kListed = 4;

LOCKSTEP_AVX2_FMA inline bool is_listed(int64_t num_kept, int64_t num_elements) {
  return num_kept * kListed <= num_elements;
}

/// Lists the positions of a block's kept elements. Prefetches a line or two per byte of the mask:
/// the processor drops further prefetches beyond its limit.
LOCKSTEP_AVX2_FMA void list(const float* values, const float* grads, const uint8_t* bits,
                            int64_t num_elements, uint16_t* positions) {
  constexpr int kBytesALine = 2;
  int64_t num_kept = 0;
  for (int64_t byte = 0; byte < num_mask_bytes(num_elements); ++byte) {
    if (byte % kBytesALine == 0)
      prefetch_line_ahead(values + 8 * byte), prefetch_line_ahead(grads + 8 * byte);
    const auto lanes = static_cast<int64_t>(kOrders.pack[bits[byte]]);
    const __m128i places = _mm_add_epi16(_mm_cvtepu8_epi16(_mm_cvtsi64_si128(lanes)),
                                         _mm_set1_epi16(static_cast<int16_t>(8 * byte)));
    // Stores 8 positions but advances by the kept ones only; PackedBlock::kSlack has room for that.
    _mm_storeu_si128(reinterpret_cast<__m128i*>(positions + num_kept), places);
    num_kept += std::popcount(bits[byte]);
  }
}

LOCKSTEP_AVX2_FMA void pack_listed(const float* values, const float* grads, PackedBlock& block) {
  for (int64_t k = 0; k < block.num_kept; ++k) {
    const int64_t position = block.positions[static_cast<size_t>(k)];
    block.values[static_cast<size_t>(k)] = values[position];
    block.grads[static_cast<size_t>(k)] = grads[position];
  }
}

LOCKSTEP_AVX2_FMA int64_t count(const uint8_t* bits, int64_t num_elements) {
  int64_t num_kept = 0, first = 0;
  for (; first + kWordItems <= num_elements; first += kWordItems)
    num_kept += std::popcount(word_of(bits, first));
  for (int64_t byte = first / 8; byte < num_mask_bytes(num_elements); ++byte)
    num_kept += std::popcount(bits[byte]);
  return num_kept;
}

LOCKSTEP_AVX2_FMA void pack_permuted(const float* values, const float* grads, const uint8_t* bits,
                                     int64_t num_elements, PackedBlock& block) {
  float *const values_K = block.values.data(), *const grads_K = block.grads.data();
  int64_t first = 0, num_kept = 0;
  for (; first + kWordItems <= num_elements; first += kWordItems) {
    const uint64_t word = word_of(bits, first);
    prefetch_ahead(values + first);
    prefetch_ahead(grads + first);
    for (int lane = 0; lane < kWordItems; lane += Lanes::kNum) {
      const auto kept = static_cast<uint8_t>(word >> lane);
      const uint64_t order = kOrders.pack[kept];
      _mm256_storeu_ps(values_K + num_kept, permuted(values + first + lane, order));
      _mm256_storeu_ps(grads_K + num_kept, permuted(grads + first + lane, order));
      num_kept += std::popcount(kept);
    }
  }
  (void)loops::pack_rest(values + first, grads + first, bits + first / 8, num_elements - first,
                         values_K + num_kept, grads_K + num_kept);
}

// pack() and put_kept() make the same choice from the same count, so `positions` is valid there.
LOCKSTEP_AVX2_FMA void pack(const float* values, const float* grads, const uint8_t* bits,
                            int64_t num_elements, PackedBlock& block) {
  block.num_kept = count(bits, num_elements);
  if (block.num_kept == 0) return;
  if (!is_listed(block.num_kept, num_elements))
    return pack_permuted(values, grads, bits, num_elements, block);
  list(values, grads, bits, num_elements, block.positions.data());
  pack_listed(values, grads, block);
}

LOCKSTEP_AVX2_FMA void put_permuted(const float* packed_K, const uint8_t* bits,
                                    int64_t num_elements, float* dense) {
  int64_t first = 0;
  for (; first + kWordItems <= num_elements; first += kWordItems) {
    const uint64_t word = word_of(bits, first);
    for (int lane = 0; lane < kWordItems; lane += Lanes::kNum) {
      const auto kept = static_cast<uint8_t>(word >> lane);
      const __m256 truths = _mm256_castsi256_ps(Lanes::truths_of(kept));
      float* const here = dense + first + lane;
      _mm256_storeu_ps(here, _mm256_blendv_ps(_mm256_loadu_ps(here),
                                              permuted(packed_K, kOrders.spread[kept]), truths));
      packed_K += std::popcount(kept);
    }
  }
  loops::put_kept(packed_K, bits + first / 8, num_elements - first, dense + first);
}

LOCKSTEP_AVX2_FMA void put_kept(const PackedBlock& block, const uint8_t* bits, int64_t num_elements,
                                float* dense) {
  const float* packed_K = block.values.data();
  if (!is_listed(block.num_kept, num_elements))
    return put_permuted(packed_K, bits, num_elements, dense);
  for (int64_t k = 0; k < block.num_kept; ++k)
    dense[block.positions[static_cast<size_t>(k)]] = packed_K[k];
}

}  // namespace

const UpdateKernels& avx2_update_kernels() {
  static constexpr UpdateKernels kKernels{pack, put_kept, follow, rules::OfAll<Updates>::kAll};
  return kKernels;
}

#else

const UpdateKernels& avx2_update_kernels() { return portable_update_kernels(); }

#endif

}  // namespace lockstep::optim
