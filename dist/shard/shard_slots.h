#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "dist/shard/bucket_shards.h"
#include "dist/shard/shard_masks.h"

namespace lockstep::dist {

/// Copies between a bucket's elements [E] and the N slots of a message [N * K], for both directions
/// (dist/reducer/reduce_scatter_bucket.h, dist/shard/value_gather.h). Slots and packing:
/// dist/shard/bucket_shards.h, dist/shard/shard_masks.h. Returned tensors are views.

/// Return one rank's own elements, and the window of K elements around them that travels.
inline at::Tensor piece_of(const at::Tensor& bucket_E, const BucketShards& pieces, int piece) {
  return bucket_E.narrow(0, pieces.begin(piece), pieces.size(piece));
}
inline at::Tensor window_of(const at::Tensor& bucket_E, const BucketShards& pieces, int piece) {
  return bucket_E.narrow(0, pieces.window_begin(piece), pieces.largest());
}

/// Returns slot `piece` of the message: [K].
inline at::Tensor slot_of(const at::Tensor& message_NK, int piece, int num_pieces) {
  const int64_t num_items = message_NK.numel() / num_pieces;
  return message_NK.narrow(0, piece * num_items, num_items);
}

/// Copies, with rounding if the types differ. Equal sizes.
void copy_items(const at::Tensor& from, const at::Tensor& to);

/// Copies the kept elements of a piece to the front of a slot, followed by zeros. CPU; not if all
/// are kept.
void pack_piece(const at::Tensor& bucket_E, const BucketShards& pieces, const ShardMasks& kept,
                int piece, const at::Tensor& slot_K);
/// Copies the front of a slot back to the kept elements of a piece; other elements become zeros.
void unpack_piece(const at::Tensor& slot_K, const BucketShards& pieces, const ShardMasks& kept,
                  int piece, const at::Tensor& bucket_E);

/// Returns bool items on the CPU: true for each item that a mask drops.
at::Tensor dropped_items(const uint8_t* bits, int64_t num_items);

}  // namespace lockstep::dist
