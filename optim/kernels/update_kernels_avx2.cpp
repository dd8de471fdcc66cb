#include <array>
#include <bit>

#include "base/bits/avx2.h"
#include "base/bits/mask_words.h"
#include "optim/kernels/update_kernels.h"
#include "optim/kernels/update_loops.h"

namespace lockstep::optim {

#if defined(__x86_64__)

namespace {

/// LOCKSTEP_AVX2, whose machines all multiply and add in one (base/bits/simd.cpp), but whose other
/// sources must not contract what they compute.
#define LOCKSTEP_AVX2_FMA __attribute__((target("avx2,fma,bmi,bmi2,popcnt")))

LOCKSTEP_UPDATES(LOCKSTEP_AVX2_FMA)

using Lanes = avx2::Lanes<uint32_t>;

/// AVX2 cannot pack and spread; it can permute, in an order that a table knows for each byte of
/// the mask. Byte i of an entry is for lane i.
struct Orders {
  std::array<uint64_t, 256> pack{};    ///< lane i comes from the i-th kept one
  std::array<uint64_t, 256> spread{};  ///< lane i comes from where it was packed to, if kept

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

/// A word of 64 items with as many kept ones or fewer is walked one kept item after another.
constexpr int kFew = 16;

LOCKSTEP_AVX2_FMA int64_t pack(const float* values, const float* grads, const uint8_t* bits,
                               int64_t num_elements, float* values_K, float* grads_K) {
  int64_t first = 0, num_kept = 0;
  for (; first + kWordItems <= num_elements; first += kWordItems) {
    uint64_t word = word_of(bits, first);
    if (word == 0) continue;
    prefetch_ahead(values + first);
    prefetch_ahead(grads + first);
    if (std::popcount(word) <= kFew) {
      for (; word != 0; word &= word - 1, ++num_kept) {
        const int64_t item = first + std::countr_zero(word);
        values_K[num_kept] = values[item];
        grads_K[num_kept] = grads[item];
      }
      continue;
    }
    for (int lane = 0; lane < kWordItems; lane += Lanes::kNum) {
      const auto kept = static_cast<uint8_t>(word >> lane);
      const uint64_t order = kOrders.pack[kept];
      _mm256_storeu_ps(values_K + num_kept, permuted(values + first + lane, order));
      _mm256_storeu_ps(grads_K + num_kept, permuted(grads + first + lane, order));
      num_kept += std::popcount(kept);
    }
  }
  return num_kept + portable_update_kernels().pack(values + first, grads + first, bits + first / 8,
                                                   num_elements - first, values_K + num_kept,
                                                   grads_K + num_kept);
}

LOCKSTEP_AVX2_FMA void put_kept(const float* packed_K, const uint8_t* bits, int64_t num_elements,
                                float* values) {
  int64_t first = 0;
  for (; first + kWordItems <= num_elements; first += kWordItems) {
    uint64_t word = word_of(bits, first);
    if (std::popcount(word) <= kFew) {
      for (; word != 0; word &= word - 1) values[first + std::countr_zero(word)] = *packed_K++;
      continue;
    }
    for (int lane = 0; lane < kWordItems; lane += Lanes::kNum) {
      const auto kept = static_cast<uint8_t>(word >> lane);
      const __m256 truths = _mm256_castsi256_ps(Lanes::truths_of(kept));
      float* const here = values + first + lane;
      _mm256_storeu_ps(here, _mm256_blendv_ps(_mm256_loadu_ps(here),
                                              permuted(packed_K, kOrders.spread[kept]), truths));
      packed_K += std::popcount(kept);
    }
  }
  loops::put_kept(packed_K, bits + first / 8, num_elements - first, values + first);
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
