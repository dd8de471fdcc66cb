#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "recal/masks/mask_kind.h"

namespace lockstep::recal {

/// Weights that an N:M mask may still prune in one parameter.
struct Prunable {
  std::vector<uint8_t> bits;  ///< prunable elements, as in base/bits/bit_mask.h
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

}  // namespace lockstep::recal
