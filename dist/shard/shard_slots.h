#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "dist/shard/bucket_shards.h"
#include "dist/shard/shard_masks.h"

namespace lockstep::dist {

/// Between a bucket's elements [E] and the N slots of a message [N * K]; what both directions need
/// (dist/reducer/reduce_scatter_bucket.h, dist/shard/value_gather.h). Slots and packing:
/// dist/shard/bucket_shards.h, dist/shard/shard_masks.h. Tensors share memory with what they are
/// parts of.

/// One rank's own elements, and the K around them that travel as they are.
inline at::Tensor piece_of(const at::Tensor& bucket_E, const BucketShards& pieces, int piece) {
  return bucket_E.narrow(0, pieces.begin(piece), pieces.size(piece));
}
inline at::Tensor window_of(const at::Tensor& bucket_E, const BucketShards& pieces, int piece) {
  return bucket_E.narrow(0, pieces.window_begin(piece), pieces.largest());
}

/// [K]
inline at::Tensor slot_of(const at::Tensor& message_NK, int piece, int num_pieces) {
  const int64_t num_items = message_NK.numel() / num_pieces;
  return message_NK.narrow(0, piece * num_items, num_items);
}

/// Copies, or rounds where the types differ. Equal sizes.
void copy_items(const at::Tensor& from, const at::Tensor& to);

/// The kept elements of a piece to the front of a slot, zeros behind them. CPU; not if all are
/// kept.
void pack_piece(const at::Tensor& bucket_E, const BucketShards& pieces, const ShardMasks& kept,
                int piece, const at::Tensor& slot_K);
/// The inverse; elements that are not kept become zeros.
void unpack_piece(const at::Tensor& slot_K, const BucketShards& pieces, const ShardMasks& kept,
                  int piece, const at::Tensor& bucket_E);

/// True for each of the items that a mask drops: bool, on the CPU.
at::Tensor dropped_items(const uint8_t* bits, int64_t num_items);

}  // namespace lockstep::dist
