#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "recal/masks/mask_kind.h"

namespace lockstep::recal {

/// The groups of one weight that a block, filter or channel mask prunes as a whole, numbered by
/// their first member in row-major order.
struct GroupScores {
  std::vector<double> scores;  ///< mean magnitude of the members
  std::vector<uint8_t> kept;   ///< bits (base/bits/bit_mask.h): groups of which any member is kept
};

/// The score of a group is the sum of its kept members' magnitudes, in double, added in row-major
/// order, over the number of all its members: so equal weights give equal bits everywhere. NaN
/// makes a NaN, which selection counts as the largest.
///
/// weight: CPU, contiguous, [O, I, ...] (check_mask_kind), float32, float64, bfloat16 or float16;
/// kept: the bits of its items. Blocks run along the inputs, at each kernel position by itself; the
/// last one of a row may be shorter.
GroupScores score_groups(const MaskKind& kind, const at::Tensor& weight, const uint8_t* kept);

/// Drops every member of the groups that are pruned in `groups_kept`.
void drop_groups(const MaskKind& kind, c10::IntArrayRef sizes,
                 const std::vector<uint8_t>& groups_kept, uint8_t* kept);

}  // namespace lockstep::recal
