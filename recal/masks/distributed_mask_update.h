#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dist/communicator.h"
#include "recal/masks/mask_update.h"

namespace lockstep::recal {

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
