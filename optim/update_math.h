#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "base/bits/bit_mask.h"

/// The update rules, element by element, written once for all paths. Each source of a path
/// (update_kernels_*.cpp) compiles these loops with its own instructions. All operations are IEEE's
/// and sources are compiled without contraction (optim/CMakeLists.txt), so an element gets the same
/// bits in a vector, in the rest behind the last vector, and on every path.
///
/// The order of operations and which are fused is what ATen's fused kernels do in their vectors on
/// x86-64 with AVX2 or AVX-512 (found by trying, LibTorch 2.11; tests/optim/packed_update_test.cpp
/// compares bits), so that packing a buffer changes no bit of a weight.
namespace lockstep::optim {

/// One Adam update in float32, for the formula in optim/adam.h.
struct AdamNumbers {
  float weight_decay = 0;
  float first_share = 0;   ///< 1 - beta1
  float second_decay = 0;  ///< beta2
  float second_share = 0;  ///< 1 - beta2
  float root_scale = 1;    ///< sqrt(1 - beta2^t)
  float epsilon = 0;       ///< added behind the division by root_scale
  float minus_rate = 0;    ///< -rate / (1 - beta1^t)
};

/// One momentum update in float32, for the formula in optim/sgd.h.
struct MomentumNumbers {
  float weight_decay = 0;
  float momentum = 0;
  float minus_rate = 0;
  bool nesterov = false;
};

}  // namespace lockstep::optim

#define LOCKSTEP_INLINE inline __attribute__((always_inline))

namespace lockstep::optim::math {

/// m + share (g - m), in the form that is exact at both ends.
LOCKSTEP_INLINE float moved(float m, float g, float share) {
  return std::fabs(share) < 0.5F ? std::fma(share, g - m, m) : std::fma(share - 1, g - m, g);
}

template <bool kDecays>
LOCKSTEP_INLINE void adam(int64_t num, const float* __restrict grads,
                          const float* __restrict values, float* __restrict m, float* __restrict v,
                          float* __restrict changes, const AdamNumbers& by) {
  const AdamNumbers c = by;  // no store below can change it
  for (int64_t i = 0; i < num; ++i) {
    const float g = kDecays ? std::fma(values[i], c.weight_decay, grads[i]) : grads[i];
    m[i] = moved(m[i], g, c.first_share);
    v[i] = std::fma(c.second_share * g, g, v[i] * c.second_decay);
    changes[i] = c.minus_rate * m[i] / (std::sqrt(v[i]) / c.root_scale + c.epsilon);
  }
}

template <bool kDecays, bool kNesterov>
LOCKSTEP_INLINE void momentum(int64_t num, const float* __restrict grads,
                              const float* __restrict values, float* __restrict m,
                              float* __restrict changes, const MomentumNumbers& by) {
  const MomentumNumbers c = by;
  for (int64_t i = 0; i < num; ++i) {
    const float g = kDecays ? std::fma(values[i], c.weight_decay, grads[i]) : grads[i];
    m[i] = m[i] * c.momentum + g;
    changes[i] = kNesterov ? std::fma(m[i], c.momentum, g) : m[i];
  }
}

/// values[i] += factor * changes of kept elements, rounded once; pruned ones are not touched.
LOCKSTEP_INLINE void add_kept(const float* changes_K, const uint8_t* bits, int64_t num_elements,
                              float factor, float* values) {
  for (int64_t byte = 0; byte < num_mask_bytes(num_elements); ++byte)
    for (unsigned kept = bits[byte]; kept != 0; kept &= kept - 1) {
      float& value = values[8 * byte + std::countr_zero(kept)];
      value = std::fma(factor, *changes_K++, value);
    }
}

}  // namespace lockstep::optim::math

/// The kernels of one path out of the loops above; `target` is the attribute of its functions.
// NOLINTBEGIN(bugprone-macro-parentheses): an attribute takes no parentheses around it
#define LOCKSTEP_UPDATE_KERNELS(target)                                                        \
  target void adam_of_path(int64_t num, const float* grads, const float* values, float* m,     \
                           float* v, float* changes, const AdamNumbers& by) {                  \
    if (values != nullptr)                                                                     \
      math::adam<true>(num, grads, values, m, v, changes, by);                                 \
    else                                                                                       \
      math::adam<false>(num, grads, values, m, v, changes, by);                                \
  }                                                                                            \
  target void momentum_of_path(int64_t num, const float* grads, const float* values, float* m, \
                               float* changes, const MomentumNumbers& by) {                    \
    if (values != nullptr && by.nesterov)                                                      \
      math::momentum<true, true>(num, grads, values, m, changes, by);                          \
    else if (values != nullptr)                                                                \
      math::momentum<true, false>(num, grads, values, m, changes, by);                         \
    else if (by.nesterov)                                                                      \
      math::momentum<false, true>(num, grads, values, m, changes, by);                         \
    else                                                                                       \
      math::momentum<false, false>(num, grads, values, m, changes, by);                        \
  }
// NOLINTEND(bugprone-macro-parentheses)
