#pragma once

#include <cstdint>

#include "base/bits/simd.h"
#include "optim/update_math.h"

namespace lockstep::optim {

/// One implementation of the update rules on elements that stand close together. `values` null: no
/// weight decay. Arrays do not overlap; all have `num` elements. Moments are updated in place.
/// Results are the same bits on every path.
struct UpdateKernels {
  /// As base/bits/bit_mask.h's pack_kept(); may write kSlack floats behind the packed ones.
  int64_t (*pack)(const float* values, const uint8_t* bits, int64_t num_elements, float* packed_K);
  /// changes: what is to be added to the values.
  void (*adam)(int64_t num, const float* grads, const float* values, float* m, float* v,
               float* changes, const AdamNumbers& by);
  /// changes: what is to be added to the values, times by.minus_rate.
  void (*momentum)(int64_t num, const float* grads, const float* values, float* m, float* changes,
                   const MomentumNumbers& by);
  /// values += factor * change, rounded once, of the kept elements (base/bits/bit_mask.h), whose
  /// changes stand close together in order. Behind them kSlack floats may be read. Pruned values,
  /// where they are touched at all, get +0 added.
  void (*add_kept)(const float* changes_K, const uint8_t* bits, int64_t num_elements, float factor,
                   float* values);
};

inline constexpr int64_t kSlack = 16;

/// The kernels of a path that simd_paths() lists.
const UpdateKernels& update_kernels(SimdPath path);

const UpdateKernels& portable_update_kernels();
const UpdateKernels& avx2_update_kernels();
const UpdateKernels& avx512_update_kernels();

}  // namespace lockstep::optim
