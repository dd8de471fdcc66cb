#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "dist/bucket/scratch_buffer.h"
#include "dist/communicator.h"
#include "dist/shard/bucket_shards.h"
#include "dist/shard/shard_masks.h"

namespace lockstep::dist {

/// Gathers all pieces of a bucket on every rank, after each rank has updated its own piece. Bits
/// are those of the owners. Collective; one all_gather. Returns the payload of all ranks together
/// in bytes: N * K items, K = the items of the largest piece.
///
/// packed: only kept values travel, and other values of a remote piece become +0. With enforced
/// masks they are +0 already (recal/masks/mask_table.h), and an update keeps them. For every
/// optimizer, gradient, moment and decay of a zero weight with zero gradient are zero. On the CPU,
/// and not if all are kept. Equal dense pieces are gathered in place.
int64_t gather_pieces(Communicator& comm, const at::Tensor& values_E, const BucketShards& pieces,
                      const ShardMasks& kept, bool packed, ScratchBuffer& scratch);

}  // namespace lockstep::dist
