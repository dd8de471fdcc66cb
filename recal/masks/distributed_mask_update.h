#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dist/communicator.h"
#include "recal/masks/mask_update.h"

namespace lockstep::recal {

/// Distribution of the computation of new masks over the ranks; the same on all ranks.
enum class MaskWork {
  kBySize,   ///< distributed where that takes less time (division_pays)
  kAlone,    ///< every rank computes all
  kDivided,  ///< each rank computes some of them
};

/// The rank of each weight: the largest first, each to the rank that has least so far (of equal
/// ones the lowest).
std::vector<int> share_out(std::span<const int64_t> num_weights, int world_size);

/// True if dividing a set of weights of these sizes over the ranks takes less time than computing
/// every mask on every rank.
///
/// Dividing costs what computing alone does not: a digest of all weights on each rank, without
/// which a rank with other weights would no longer be found (before, its mask would have differed),
/// and the exchange of the bits. Unstructured masks are computed nearly as fast as weights can be
/// digested, so few ranks gain nothing; masks of groups gain from 2 ranks on. The times a weight
/// were measured by bench/prune_ops. Under a global rule nothing is divided.
bool division_pays(const MaskRule& rule, std::span<const int64_t> num_weights, int world_size);

/// As update_masks, each rank computing its share. Collective: weights and masks must have been
/// given in the same order everywhere. First compares weights and present masks over the ranks:
/// throws Error(kDisagree).everywhere() that names tensor and ranks, so that what one rank computes
/// is right for all.
void update_masks_divided(std::span<const MaskedWeight> weights, double sparsity,
                          const MaskRule& rule, dist::Communicator& control);

}  // namespace lockstep::recal
