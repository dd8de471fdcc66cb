#pragma once

#include <bit>
#include <cstdint>

#include "base/simd/bit_mask.h"
#include "base/simd/bit_mask_kernels.h"
#include "optim/rules.h"

/// Loops that each SIMD path compiles with its own instructions (update_kernels_*.cpp).
namespace lockstep::optim::loops {

template <typename Rule>
LOCKSTEP_INLINE void update(int64_t num, float* __restrict values, float* __restrict grads,
                            float* __restrict first_slot, float* __restrict second_slot,
                            const rules::WeightDecay<float>& decay_, const Rule& rule_) {
  const Rule rule = rule_;  // a copy, which no store below can change
  const rules::WeightDecay<float> decay = decay_;
  for (int64_t i = 0; i < num; ++i) {
    const float w = rules::multiply_add(values[i], decay.minus_share, values[i]);
    const float g = rules::multiply_add(values[i], decay.l2, grads[i]);
    values[i] = rules::apply(rule, w, g, first_slot, second_slot, i);
  }
}

LOCKSTEP_INLINE void follow(int64_t num, const float* __restrict weights, float share_,
                            float* __restrict averages) {
  const float share = share_;
  for (int64_t i = 0; i < num; ++i) averages[i] += share * (weights[i] - averages[i]);
}

inline int64_t pack_rest(const float* values, const float* grads, const uint8_t* bits,
                         int64_t num_elements, float* values_K, float* grads_K) {
  const auto pack_kept = portable_bit_mask_kernels<uint32_t>().pack_kept;
  (void)pack_kept(values, bits, num_elements, values_K);
  return pack_kept(grads, bits, num_elements, grads_K);
}

LOCKSTEP_INLINE void put_kept(const float* packed_K, const uint8_t* bits, int64_t num_elements,
                              float* values) {
  for (int64_t byte = 0; byte < num_mask_bytes(num_elements); ++byte)
    for (unsigned kept = bits[byte]; kept != 0; kept &= kept - 1)
      values[8 * byte + std::countr_zero(kept)] = *packed_K++;
}

}  // namespace lockstep::optim::loops

/// Declares update<Rule>() for one path and the table of its kernels. target: attribute of the
/// functions.
// NOLINTBEGIN(bugprone-macro-parentheses): an attribute takes no parentheses around it
#define LOCKSTEP_UPDATES(target)                                                        \
  template <typename Rule>                                                              \
  target void update(int64_t num, float* values, float* grads, float* first_slot,       \
                     float* second_slot, const rules::WeightDecay<float>& decay,        \
                     const Rule& rule) {                                                \
    loops::update(num, values, grads, first_slot, second_slot, decay, rule);            \
  }                                                                                     \
  target void follow(int64_t num, const float* weights, float share, float* averages) { \
    loops::follow(num, weights, share, averages);                                       \
  }                                                                                     \
  template <typename... Rule>                                                           \
  struct Updates {                                                                      \
    static constexpr UpdateKernels::Of<Rule...> kAll{update<Rule>...};                  \
  };
// NOLINTEND(bugprone-macro-parentheses)
