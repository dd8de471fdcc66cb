#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "recal/masks/mask_kind.h"

/// Parts of mask computation for structured masks: blocks, filters, channels and N:M.
namespace lockstep::recal {

/// Scores of the groups that a block, filter or channel mask prunes as a whole. Groups are numbered
/// by their first member in row-major order.
struct GroupScores {
  std::vector<double> scores;  ///< mean magnitude of the members
  std::vector<uint8_t> kept;   ///< bits (base/simd/bit_mask.h): 1 if any member is kept
};

/// Computes the score of each group: the sum of its kept members' magnitudes over the number of all
/// its members. The sum is in double and in row-major order, so equal weights give equal bits on
/// every machine. A NaN member makes the score NaN, which selection treats as the largest.
///
/// weight: CPU, contiguous, [O, I, ...] (check_mask_kind), float32, float64, bfloat16 or float16;
/// kept: the bits of its elements. Blocks run along the inputs, separately at each kernel position.
/// The last block of a row may be shorter.
GroupScores score_groups(const MaskKind& kind, const at::Tensor& weight, const uint8_t* kept);

/// Drops every member of the groups that are pruned in `groups_kept`.
void drop_groups(const MaskKind& kind, c10::IntArrayRef sizes,
                 const std::vector<uint8_t>& groups_kept, uint8_t* kept);

/// Weights that an N:M mask may still prune in one parameter.
struct Prunable {
  std::vector<uint8_t> bits;  ///< prunable elements, as in base/simd/bit_mask.h
  /// Pruned elements that count for the sparsity: at most M - N per group. Another kind of mask may
  /// have pruned a group further. The limit keeps that from stopping the other groups short of N:M.
  int64_t num_pruned = 0;
};

/// Selects the smallest kept magnitudes of each M neighbouring inputs, at each kernel position. On
/// ties the lowest index comes first. Together with those already pruned, M - N are selected per
/// group. Pruning all selected elements gives the full N:M pattern.
///
/// weight: CPU, contiguous, [O, I, ...] where M divides I (check_mask_kind); kept: its bits.
Prunable prunable_n_of_m(const MaskKind& kind, const at::Tensor& weight, const uint8_t* kept);

/// Works as prunable_n_of_m() for 2:4 transposable. Of each 4×4 tile 8 elements are selected, two
/// in each row and each column. Of the 90 such selections it takes the one with the most elements
/// already pruned; among these the one with the smallest sum of magnitudes; on ties the first in
/// memory.
///
/// weight: CPU, contiguous, [O, I], both multiples of 4; kept: its bits.
///
/// Source: Hubara et al., arXiv 2102.08124.
Prunable prunable_in_tiles(const at::Tensor& weight, const uint8_t* kept);

}  // namespace lockstep::recal
