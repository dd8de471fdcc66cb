#include <bit>

#include "base/simd/avx512.h"
#include "base/simd/bit_mask_kernels.h"
#include "optim/rules.h"
#include "optim/update_loops.h"

namespace lockstep::optim {

#if defined(__x86_64__)

namespace {

LOCKSTEP_UPDATES(LOCKSTEP_AVX512)

/// Mask of all lanes. g++ 12 warns of uninitialised values in the forms without a mask. A shuffle
/// instead of an extract takes a register and half as long again.
constexpr __mmask8 kHalf = 0xFF;

/// Stores halves: a 64-byte store that crosses cache lines takes twice as long as two of 32 bytes.
LOCKSTEP_AVX512 inline void store_halves(__m512 values, float* out) {
  _mm256_storeu_ps(out, __builtin_shufflevector(values, values, 0, 1, 2, 3, 4, 5, 6, 7));
  _mm256_storeu_ps(out + 8, _mm512_maskz_extractf32x8_ps(kHalf, values, 1));
}

LOCKSTEP_AVX512 void pack(const float* values, const float* grads, const uint8_t* bits,
                          int64_t num_elements, PackedBlock& block) {
  constexpr int kLanes = avx512::Lanes<uint32_t>::kNum;
  float *const values_K = block.values.data(), *const grads_K = block.grads.data();
  int64_t first = 0, num_kept = 0;
  for (; first + kWordItems <= num_elements; first += kWordItems) {
    const uint64_t kept = word_of(bits, first);
    if (kept == 0) continue;
    for (int lane = 0; lane < kWordItems; lane += kLanes) {
      const __mmask16 k = avx512::part_of<uint32_t>(kept, lane);
      store_halves(_mm512_maskz_compress_ps(k, _mm512_loadu_ps(values + first + lane)),
                   values_K + num_kept);
      store_halves(_mm512_maskz_compress_ps(k, _mm512_loadu_ps(grads + first + lane)),
                   grads_K + num_kept);
      num_kept += std::popcount(k);
    }
  }
  block.num_kept =
      num_kept + loops::pack_rest(values + first, grads + first, bits + first / 8,
                                  num_elements - first, values_K + num_kept, grads_K + num_kept);
}

/// Unpacks with whole vectors. Masked stores that overlap the next load would delay each load.
LOCKSTEP_AVX512 void put_kept(const PackedBlock& block, const uint8_t* bits, int64_t num_elements,
                              float* dense) {
  constexpr int kLanes = avx512::Lanes<uint32_t>::kNum;
  const float* packed_K = block.values.data();
  int64_t first = 0;
  for (; first + kWordItems <= num_elements; first += kWordItems) {
    const uint64_t kept = word_of(bits, first);
    if (kept == 0) continue;
    for (int lane = 0; lane < kWordItems; lane += kLanes) {
      const __mmask16 k = avx512::part_of<uint32_t>(kept, lane);
      float* const here = dense + first + lane;
      _mm512_storeu_ps(here,
                       _mm512_mask_expand_ps(_mm512_loadu_ps(here), k, _mm512_loadu_ps(packed_K)));
      packed_K += std::popcount(k);
    }
  }
  loops::put_kept(packed_K, bits + first / 8, num_elements - first, dense + first);
}

}  // namespace

const UpdateKernels& avx512_update_kernels() {
  static constexpr UpdateKernels kKernels{pack, put_kept, follow, rules::OfAll<Updates>::kAll};
  return kKernels;
}

#else

const UpdateKernels& avx512_update_kernels() { return portable_update_kernels(); }

#endif

}  // namespace lockstep::optim
