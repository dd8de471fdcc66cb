#pragma once

#include <array>
#include <cstdint>
#include <tuple>

#include "base/bits/simd.h"
#include "optim/rules/all_rules.h"

namespace lockstep::optim {

/// One update of `num` elements that stand close together. Arrays do not overlap; slots that the
/// rule does not have may be null. Values and slots are updated in place.
template <typename Rule>
using UpdateKernel = void (*)(int64_t num, float* values, float* grads, float* first_slot,
                              float* second_slot, const rules::WeightDecay<float>& decay,
                              const Rule& rule);

/// Elements of which the values, where they stand and packed, and the gradients stay in the first
/// cache (docs/results/tried.md).
inline constexpr int64_t kBlock = 512;

/// The kept ones of kBlock elements, close together.
struct PackedBlock {
  static constexpr int64_t kSlack = 16;  ///< items that a path may write and read behind the packed
  using Floats = std::array<float, kBlock + kSlack>;

  int64_t num_kept = 0;
  alignas(64) Floats values, grads;
  std::array<uint16_t, kBlock + kSlack> positions;  ///< of a path's own: where they stood
};

/// One implementation of the rules and of what packing needs. Results are the same bits on every
/// path.
struct UpdateKernels {
  template <typename... Rule>
  using Of = std::tuple<UpdateKernel<Rule>...>;

  /// Fills a block from kBlock elements or fewer: base/bits/bit_mask.h's pack_kept(), of values and
  /// gradients in one walk.
  void (*pack)(const float* values, const float* grads, const uint8_t* bits, int64_t num_elements,
               PackedBlock& block);
  /// The inverse: the block's values to the kept elements of the `dense` ones that it was filled
  /// from; the others stay as they are.
  void (*put_kept)(const PackedBlock& block, const uint8_t* bits, int64_t num_elements,
                   float* dense);
  /// averages[i] += share * (weights[i] - averages[i])
  void (*follow)(int64_t num, const float* weights, float share, float* averages);
  rules::OfAll<Of> of_rules;

  template <typename Rule>
  UpdateKernel<Rule> of() const {
    return std::get<UpdateKernel<Rule>>(of_rules);
  }
};

/// Elements that are worth a thread.
inline constexpr int64_t kGrain = 32768;

/// The kernels of a path that simd_paths() lists.
const UpdateKernels& update_kernels(SimdPath path);

const UpdateKernels& portable_update_kernels();
const UpdateKernels& avx2_update_kernels();
const UpdateKernels& avx512_update_kernels();

}  // namespace lockstep::optim
