#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include "dist/communicator.h"
#include "recal/masks/mask_kind.h"

/// Pruning of the smallest weights: checks, masks computed on one rank, masks computed by all
/// ranks.
namespace lockstep::recal {

/// Throws Error(kConfig) unless a weight of this shape can have a mask of this kind. All kinds but
/// unstructured need 2 or more dimensions. N:M needs a number of inputs (dimension 1) that M
/// divides; 2:4 transposable two dimensions, both multiples of 16. The message names the parameter,
/// its shape and the way out. Called when a recipe is attached.
void check_mask_kind(const MaskKind& kind, std::string_view name, c10::IntArrayRef shape);

/// Throws Error(kConfig) unless 0 <= sparsity <= 1; for N:M at most 1 - N/M.
void check_mask_sparsity(const MaskKind& kind, double sparsity);

/// Weight and the bits of its mask (base/simd/bit_mask.h).
struct MaskedWeight {
  std::string name;
  at::Tensor values;     ///< CPU, contiguous; float32, float64, bfloat16 or float16
  at::Tensor kept_bits;  ///< uint8 [num_mask_bytes(values.numel())], CPU, contiguous
};

/// Prunes the smallest weights to a sparsity s: each weight alone, or all together if rule.global.
///
///   unstructured            exactly llround(s * n) weights are pruned
///   block, filter, channel  exactly llround(s * n) groups are pruned whole; a group's size is the
///                           mean magnitude of its members (score_groups)
///   N:M                     exactly llround(s * n) weights, smallest first, but never more than
///                           M - N of M neighbours; s = 1 - N/M gives the full pattern
///   2:4 transposable        the same, never more than 2 of 4 neighbouring inputs or outputs
///
/// Blocks, filters and channels: a sparsity below 1 leaves one group of each weight. If the count
/// would prune all kept groups of a weight, the largest stays (on ties the last). Reason: a layer
/// of zeros passes nothing on. In a layer with one input or ten outputs, one group is a large
/// share. (SparseML excludes layers of one filter or channel.)
///
/// Pruned weights stay pruned. If more is pruned than asked for, nothing changes. On ties the first
/// weight goes first, and within a weight the lowest row-major index. NaN is the largest: NaNs of
/// one type are ordered by their bits, across types all NaNs are equal. Equal inputs give equal
/// bits on every machine. Shapes and sparsity must have passed check_mask_kind() and
/// check_mask_sparsity(). Under a global rule, weights of different types are compared as float64.
///
/// Costs of 20 M float32 weights on one core: bench/programs/prune_ops.cpp.
void update_masks(std::span<const MaskedWeight> weights, double sparsity, const MaskRule& rule);

/// Distribution of mask computation over the ranks. Must be the same on all ranks.
enum class MaskWork {
  kBySize,   ///< distributed if that takes less time (division_pays)
  kAlone,    ///< every rank computes all masks
  kDivided,  ///< each rank computes some of the masks
};

/// Assigns each weight to a rank (greedy): the largest weight first, to the least loaded rank, on
/// ties the lowest rank. Returns one rank per weight.
std::vector<int> share_out(std::span<const int64_t> num_weights, int world_size);

/// True if distributing a set of weights of these sizes takes less time than computing every mask
/// on every rank.
///
/// Distribution adds two costs. Each rank computes a digest of all weights. Without the digest a
/// rank with different weights would go unnoticed, since it no longer computes every mask itself.
/// The bits must also be exchanged. Unstructured masks take little longer than a digest, so few
/// ranks gain nothing. Masks of groups gain from 2 ranks on. bench/programs/prune_ops.cpp measured
/// the time per weight. Masks under a global rule are never distributed.
bool division_pays(const MaskRule& rule, std::span<const int64_t> num_weights, int world_size);

/// Works as update_masks, but each rank computes its share. Collective: all ranks must pass weights
/// and masks in the same order. First compares weights and current masks over the ranks, so that
/// the result of one rank is right for all. Throws Error(kDisagree).everywhere() with tensor and
/// ranks if they differ.
void update_masks_divided(std::span<const MaskedWeight> weights, double sparsity,
                          const MaskRule& rule, dist::Communicator& control);

}  // namespace lockstep::recal
