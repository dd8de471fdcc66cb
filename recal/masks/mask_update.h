#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <ATen/core/Tensor.h>

#include "recal/masks/mask_kind.h"

namespace lockstep::recal {

/// A weight and the bits of its mask (base/bits/bit_mask.h).
struct MaskedWeight {
  std::string name;
  at::Tensor values;     ///< CPU, contiguous; float32, float64, bfloat16 or float16
  at::Tensor kept_bits;  ///< uint8 [num_mask_bytes(values.numel())], CPU, contiguous
};

/// Prunes what is smallest until each weight has this sparsity, or, if rule.global, all together:
///
///   unstructured            exactly llround(s * n) weights are pruned
///   block, filter, channel  exactly llround(s * n) groups are pruned whole; a group's size is the
///                           mean magnitude of its members (mask_groups.h)
///   N:M                     exactly llround(s * n) weights, smallest first, but never more than
///                           M - N of M neighbours; at s = 1 - N/M the full pattern stands
///
/// Blocks, filters and channels: a sparsity below 1 leaves one of each weight. Where these counts
/// would take all that are kept, the largest stays (of equal ones the last): of a layer with one
/// input or ten outputs a coarse group is much, and a layer of zeros passes nothing on. (SparseML
/// spares layers of one filter or channel.)
///
/// What is pruned stays so, and where more is pruned than asked nothing changes. Of equal sizes the
/// first weight and there the lowest row-major index goes first; NaN is the
/// largest (among weights of one type, NaNs by their bits; otherwise all NaNs are equal). Equal
/// inputs give equal bits on every machine. Shapes and sparsity must have passed
/// recal/masks/mask_check.h. Weights of different types under a global rule are compared as
/// float64.
///
/// Costs of 20 M float32 weights on one core: bench/programs/prune_ops.cpp.
void update_masks(std::span<const MaskedWeight> weights, double sparsity, const MaskRule& rule);

}  // namespace lockstep::recal
