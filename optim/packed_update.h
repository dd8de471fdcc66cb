#pragma once

#include <cstdint>

#include "base/bits/simd.h"
#include "optim/packed_mask.h"
#include "optim/update_math.h"

namespace lockstep::optim {

/// Values and gradients of one region, dense float32 on the CPU, [R] each.
struct RegionData {
  float* values_R = nullptr;
  const float* grads_R = nullptr;
};

/// One update of the kept elements of a region, whose moments are packed, in one pass: gradients
/// are packed in small blocks, the rule is computed on what stands close together, and the values
/// are changed where they stand. Pruned values stay as they are. Uses ATen's threads; an element's
/// bits depend neither on them, nor on the path, nor on where the element stands.
void packed_adam(const PackedMask& kept, const RegionData& data, float* m_K, float* v_K,
                 const AdamNumbers& by, SimdPath path = fastest_simd_path());
void packed_momentum(const PackedMask& kept, const RegionData& data, float* momentum_K,
                     const MomentumNumbers& by, SimdPath path = fastest_simd_path());

/// The same rules on `num` dense elements, at most kMaxRest, with the same bits. momentum_R may be
/// null: plain gradient descent.
inline constexpr int64_t kMaxRest = 64;
void adam_of_rest(int64_t num, const RegionData& data, float* m_R, float* v_R,
                  const AdamNumbers& by);
void momentum_of_rest(int64_t num, const RegionData& data, float* momentum_R,
                      const MomentumNumbers& by);

}  // namespace lockstep::optim
