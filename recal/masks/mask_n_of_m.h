#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "recal/masks/mask_kind.h"

namespace lockstep::recal {

/// What an N:M mask may still prune in one weight.
struct Prunable {
  std::vector<uint8_t> bits;  ///< items that may go, as in base/bits/bit_mask.h
  /// Pruned items that count for the sparsity: in each group at most M - N, so that a group which
  /// another kind of mask has emptied further does not keep the rest from reaching the pattern.
  int64_t num_pruned = 0;
};

/// Of each M neighbouring inputs (at each kernel position) the smallest kept magnitudes, lowest
/// index first, until M - N with those that are pruned already. Pruning all of them leaves the full
/// pattern.
///
/// weight: CPU, contiguous, [O, I, ...] where M divides I (check_mask_kind); kept: its bits.
Prunable prunable_n_of_m(const MaskKind& kind, const at::Tensor& weight, const uint8_t* kept);

}  // namespace lockstep::recal
