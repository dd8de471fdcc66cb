#pragma once

#include <array>
#include <cstdint>
#include <tuple>

#include "base/simd/simd.h"
#include "optim/rules.h"

namespace lockstep::optim {

/// Updates `num` contiguous elements by a rule. Arrays do not overlap. Slots that the rule does not
/// have may be null. Values and slots are updated in place.
template <typename Rule>
using UpdateKernel = void (*)(int64_t num, float* values, float* grads, float* first_slot,
                              float* second_slot, const rules::WeightDecay<float>& decay,
                              const Rule& rule);

/// Block size in elements. Values and gradients of a block, packed and unpacked, fit the
/// first-level cache (bench/results/tried.md).
inline constexpr int64_t kBlock = 512;

/// Kept elements of kBlock elements, packed.
struct PackedBlock {
  static constexpr int64_t kSlack = 16;  ///< a path may read and write so many items more
  using Floats = std::array<float, kBlock + kSlack>;

  int64_t num_kept = 0;
  alignas(64) Floats values, grads;
  std::array<uint16_t, kBlock + kSlack> positions;  ///< for a path's own use: original positions
};

/// Implementation of the rules and of packing. All paths give the same bits.
struct UpdateKernels {
  template <typename... Rule>
  using Of = std::tuple<UpdateKernel<Rule>...>;

  /// Fills a block from kBlock or fewer elements: pack_kept() of base/simd/bit_mask.h for values
  /// and gradients in one pass.
  void (*pack)(const float* values, const float* grads, const uint8_t* bits, int64_t num_elements,
               PackedBlock& block);
  /// Reverses pack(): writes the block's values to the kept elements of `dense`, from which the
  /// block was filled. Other elements do not change.
  void (*put_kept)(const PackedBlock& block, const uint8_t* bits, int64_t num_elements,
                   float* dense);
  /// Moves averages: averages[i] += share * (weights[i] - averages[i]).
  void (*follow)(int64_t num, const float* weights, float share, float* averages);
  rules::OfAll<Of> of_rules;

  template <typename Rule>
  UpdateKernel<Rule> of() const {
    return std::get<UpdateKernel<Rule>>(of_rules);
  }
};

/// Smallest number of elements for a thread of its own.
inline constexpr int64_t kGrain = 32768;

/// Returns the kernels of a path that simd_paths() lists.
const UpdateKernels& update_kernels(SimdPath path);

const UpdateKernels& portable_update_kernels();
const UpdateKernels& avx2_update_kernels();
const UpdateKernels& avx512_update_kernels();

}  // namespace lockstep::optim
