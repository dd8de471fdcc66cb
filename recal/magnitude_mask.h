#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace lockstep::recal {

/// How many of n weights sparsity s prunes: llround(s * n).
int64_t num_to_prune(double sparsity, int64_t num_weights);

/// Prunes the smallest weights: afterwards exactly max(already pruned, num_to_prune(sparsity, n))
/// items of `mask` are 0.
///
/// values and mask have one shape, n items, on the CPU; values are float32, float64, bfloat16 or
/// float16; mask is contiguous uint8, 1 = kept, 0 = pruned. What is pruned stays so; then the
/// smallest magnitudes go, of equal ones the lowest row-major index first; NaN counts as the
/// largest. Deterministic: equal inputs give equal bits everywhere. Returns how many items were
/// newly pruned.
int64_t prune_smallest(const at::Tensor& values, double sparsity, at::Tensor mask);

/// The same for a fresh mask: uint8, shape of `values`.
at::Tensor magnitude_mask(const at::Tensor& values, double sparsity);

}  // namespace lockstep::recal
