#include "dist/shard/shard_slots.h"

#include <cstring>

#include <ATen/ops/empty.h>

#include "base/bits/bit_mask.h"

namespace lockstep::dist {
namespace {

int item_bytes(const at::Tensor& items) { return static_cast<int>(items.itemsize()); }

}  // namespace

void copy_items(const at::Tensor& from, const at::Tensor& to) {
  if (to.is_cpu() && to.scalar_type() == from.scalar_type()) {
    // memcpy is much cheaper than a call of ATen for small slots.
    if (to.nbytes() > 0) std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes());
  } else {
    to.copy_(from);
  }
}

void pack_piece(const at::Tensor& bucket_E, const BucketShards& pieces, const ShardMasks& kept,
                int piece, const at::Tensor& slot_K) {
  const at::Tensor own_E = piece_of(bucket_E, pieces, piece);
  pack_kept(own_E.const_data_ptr(), kept.bits(piece), own_E.numel(), item_bytes(own_E),
            slot_K.mutable_data_ptr());
  const int64_t num_kept = kept.count(piece);
  // Padding travels too. Zeros, so that its bytes are defined.
  slot_K.narrow(0, num_kept, slot_K.numel() - num_kept).zero_();
}

void unpack_piece(const at::Tensor& slot_K, const BucketShards& pieces, const ShardMasks& kept,
                  int piece, const at::Tensor& bucket_E) {
  const at::Tensor own_E = piece_of(bucket_E, pieces, piece);
  unpack_kept(slot_K.const_data_ptr(), kept.bits(piece), own_E.numel(), item_bytes(own_E),
              own_E.mutable_data_ptr());
}

at::Tensor dropped_items(const uint8_t* bits, int64_t num_items) {
  const at::Tensor dropped = at::empty({num_items}, at::kBool);
  bool* items = dropped.mutable_data_ptr<bool>();
  for (int64_t i = 0; i < num_items; ++i) items[i] = !is_kept(bits, i);
  return dropped;
}

}  // namespace lockstep::dist
