#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "dist/bucket/scratch_buffer.h"
#include "dist/communicator.h"
#include "dist/shard/bucket_shards.h"
#include "dist/shard/shard_masks.h"

namespace lockstep::dist {

/// After each rank has updated its own piece of a bucket's values: all pieces on every rank, the
/// bits of their owners. Collective; one all_gather. Returns the payload that each rank brought
/// together: N * K items, where K are those of the largest piece.
///
/// packed: only kept values travel, and the others of a piece that comes from elsewhere become +0.
/// They are +0 already wherever masks have been enforced (recal/masks/mask_table.h), as an update
/// keeps them: gradient, moment and decay of a zero whose gradient is zero are zero, for every
/// optimizer. On the CPU, and not if all are kept. Equal dense pieces are gathered in place.
int64_t gather_pieces(Communicator& comm, const at::Tensor& values_E, const BucketShards& pieces,
                      const ShardMasks& kept, bool packed, ScratchBuffer& scratch);

}  // namespace lockstep::dist
