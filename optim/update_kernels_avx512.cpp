#include <bit>

#include "base/bits/avx512.h"
#include "base/bits/bit_mask_kernels.h"
#include "base/bits/mask_words.h"
#include "optim/update_kernels.h"

namespace lockstep::optim {

#if defined(__x86_64__)

namespace {

LOCKSTEP_UPDATE_KERNELS(LOCKSTEP_AVX512)

int64_t pack(const float* values, const uint8_t* bits, int64_t num_elements, float* packed_K) {
  return avx512_bit_mask_kernels<uint32_t>().pack_kept(values, bits, num_elements, packed_K);
}

/// Whole vectors are loaded and stored: stores under masks that overlap what is loaded next would
/// make each load wait.
LOCKSTEP_AVX512 void add_kept(const float* changes_K, const uint8_t* bits, int64_t num_elements,
                              float factor, float* values) {
  constexpr int kLanes = avx512::Lanes<uint32_t>::kNum;
  const __m512 factors = _mm512_set1_ps(factor);
  int64_t first = 0;
  for (; first + kWordItems <= num_elements; first += kWordItems) {
    const uint64_t kept = word_of(bits, first);
    if (kept == 0) continue;
    prefetch_ahead(values + first);
    for (int lane = 0; lane < kWordItems; lane += kLanes) {
      const __mmask16 k = avx512::part_of<uint32_t>(kept, lane);
      const __m512 changes = _mm512_maskz_expand_ps(k, _mm512_loadu_ps(changes_K));
      float* const here = values + first + lane;
      _mm512_storeu_ps(here, _mm512_fmadd_ps(factors, changes, _mm512_loadu_ps(here)));
      changes_K += std::popcount(k);
    }
  }
  math::add_kept(changes_K, bits + first / 8, num_elements - first, factor, values + first);
}

}  // namespace

const UpdateKernels& avx512_update_kernels() {
  static constexpr UpdateKernels kKernels{pack, adam_of_path, momentum_of_path, add_kept};
  return kKernels;
}

#else

const UpdateKernels& avx512_update_kernels() { return portable_update_kernels(); }

#endif

}  // namespace lockstep::optim
