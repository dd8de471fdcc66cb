#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <ATen/core/Tensor.h>

#include "recal/masks/mask_kind.h"

namespace lockstep::recal {

/// Weight and the bits of its mask (base/bits/bit_mask.h).
struct MaskedWeight {
  std::string name;
  at::Tensor values;     ///< CPU, contiguous; float32, float64, bfloat16 or float16
  at::Tensor kept_bits;  ///< uint8 [num_mask_bytes(values.numel())], CPU, contiguous
};

/// Prunes the smallest weights to a sparsity s: each weight alone, or all together if rule.global.
///
///   unstructured            exactly llround(s * n) weights are pruned
///   block, filter, channel  exactly llround(s * n) groups are pruned whole; a group's size is the
///                           mean magnitude of its members (mask_groups.h)
///   N:M                     exactly llround(s * n) weights, smallest first, but never more than
///                           M - N of M neighbours; s = 1 - N/M gives the full pattern
///
/// Blocks, filters and channels: a sparsity below 1 leaves one group of each weight. If the count
/// would prune all kept groups of a weight, the largest stays (on ties the last). Reason: a layer
/// of zeros passes nothing on. In a layer with one input or ten outputs, one group is a large
/// share. (SparseML excludes layers of one filter or channel.)
///
/// Pruned weights stay pruned. If more is pruned than asked for, nothing changes. On ties the first
/// weight goes first, and within a weight the lowest row-major index. NaN is the largest: NaNs of
/// one type are ordered by their bits, across types all NaNs are equal. Equal inputs give equal
/// bits on every machine. Shapes and sparsity must have passed recal/masks/mask_check.h. Under a
/// global rule, weights of different types are compared as float64.
///
/// Costs of 20 M float32 weights on one core: bench/programs/prune_ops.cpp.
void update_masks(std::span<const MaskedWeight> weights, double sparsity, const MaskRule& rule);

}  // namespace lockstep::recal
