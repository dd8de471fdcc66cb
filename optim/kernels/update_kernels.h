#pragma once

#include <cstdint>
#include <tuple>

#include "base/bits/simd.h"
#include "optim/rules/all_rules.h"

namespace lockstep::optim {

/// One update of `num` elements that stand close together. Arrays do not overlap; slots that the
/// rule does not have may be null. Values and slots are updated in place; a rule that gives a
/// direction leaves it in `grads` and the values alone.
template <typename Rule>
using UpdateKernel = void (*)(int64_t num, float* values, float* grads, float* first_slot,
                              float* second_slot, const rules::WeightDecay<float>& decay,
                              const Rule& rule);

/// One implementation of the rules and of what packing needs. Results are the same bits on every
/// path.
struct UpdateKernels {
  template <typename... Rule>
  using Of = std::tuple<UpdateKernel<Rule>...>;

  /// As base/bits/bit_mask.h's pack_kept(), of values and gradients in one walk; may write kSlack
  /// floats behind the packed ones.
  int64_t (*pack)(const float* values, const float* grads, const uint8_t* bits,
                  int64_t num_elements, float* values_K, float* grads_K);
  /// The inverse for kept elements (base/bits/bit_mask.h); the others keep their values. Behind the
  /// packed ones kSlack floats may be read.
  void (*put_kept)(const float* packed_K, const uint8_t* bits, int64_t num_elements, float* values);
  /// averages[i] += share * (weights[i] - averages[i])
  void (*follow)(int64_t num, const float* weights, float share, float* averages);
  rules::OfAll<Of> of_rules;

  template <typename Rule>
  UpdateKernel<Rule> of() const {
    return std::get<UpdateKernel<Rule>>(of_rules);
  }
};

inline constexpr int64_t kSlack = 16;
/// Elements that are worth a thread.
inline constexpr int64_t kGrain = 32768;

/// The kernels of a path that simd_paths() lists.
const UpdateKernels& update_kernels(SimdPath path);

const UpdateKernels& portable_update_kernels();
const UpdateKernels& avx2_update_kernels();
const UpdateKernels& avx512_update_kernels();

}  // namespace lockstep::optim
