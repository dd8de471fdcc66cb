// One sharded bucket. Pieces of unequal size are copied into equal slots. launch() takes this
// rank's sums back at once, since the next bucket reuses the scratch memory.
#include "dist/reducer/reduce_scatter_bucket.h"

#include <utility>

#include "base/bits/bit_mask.h"
#include "base/bits/kept_bits.h"
#include "base/error.h"
#include "dist/backend_parts.h"
#include "dist/bucket/mean_gradient.h"
#include "dist/shard/shard_slots.h"

namespace lockstep::dist {

ReduceScatterBucket::ReduceScatterBucket(at::Tensor grads_E, BucketShards pieces, int rank,
                                         std::optional<at::ScalarType> wire, ScratchBuffer& scratch)
    : grads_E_(std::move(grads_E)),
      pieces_(std::move(pieces)),
      rank_(rank),
      scratch_(scratch),
      kept_(pieces_) {
  check(grads_E_.dim() == 1 && grads_E_.is_contiguous(), "a bucket is a run of elements");
  check(grads_E_.numel() == pieces_.num_elements(), "a bucket and its pieces");
  if (wire && c10::elementSize(*wire) < grads_E_.itemsize()) wire_ = wire;
  own_E_ = piece_of(grads_E_, pieces_, rank_);
  own_window_K_ = window_of(grads_E_, pieces_, rank_);
}

void ReduceScatterBucket::set_kept(const uint8_t* bits, int64_t first_item) {
  keep_all();
  kept_.set(bits, first_item);
  if (!kept_.are_all() && !grads_E_.is_cpu())
    dropped_there_ = dropped_items(kept_.bits(rank_), own_E_.numel()).to(grads_E_.device());
}

void ReduceScatterBucket::keep_all() {
  kept_.keep_all();
  dropped_there_ = payload_ = at::Tensor();
}

int64_t ReduceScatterBucket::dense_bytes() const {
  return pieces_.num_pieces() * pieces_.largest() * static_cast<int64_t>(grads_E_.itemsize());
}

at::Tensor ReduceScatterBucket::slot(const at::Tensor& message_NK, int piece) const {
  return slot_of(message_NK, piece, pieces_.num_pieces());
}

void ReduceScatterBucket::load_windows() {
  const at::TensorOptions options = grads_E_.options();
  // Slots have one size, that of the largest piece; windows fill them with neighbouring elements.
  payload_ = scratch_.take(pieces_.num_pieces() * pieces_.largest(),
                           wire_ ? options.dtype(*wire_) : options);
  for (int piece = 0; piece < pieces_.num_pieces(); ++piece)
    copy_items(window_of(grads_E_, pieces_, piece), slot(payload_, piece));
}

void ReduceScatterBucket::load_kept() {
  payload_ = scratch_.take(pieces_.num_pieces() * kept_.largest(), grads_E_.options());
  for (int piece = 0; piece < pieces_.num_pieces(); ++piece)
    pack_piece(grads_E_, pieces_, kept_, piece, slot(payload_, piece));
  if (!wire_) return;
  const at::TensorOptions rounded = grads_E_.options().dtype(*wire_);
  payload_ = scratch_.take(payload_.numel(), rounded).copy_(payload_);
}

at::Tensor ReduceScatterBucket::pack(bool packed) {
  check(!packed || can_pack(), "packing where nothing is left out, or not on the CPU");
  is_packed_ = packed;
  if (packed)
    load_kept();
  else if (travels_in_place())
    payload_ = grads_E_;
  else
    load_windows();
  return payload_;
}

at::Tensor ReduceScatterBucket::arrival_K() const {
  return is_packed_ || wire_ ? slot(payload_, rank_) : own_window_K_;
}

std::unique_ptr<Work> ReduceScatterBucket::launch(Communicator& comm) {
  // On a GPU, wait() only orders the stream.
  comm.reduce_scatter(arrival_K(), payload_)->wait();
  take();
  return std::make_unique<DoneWork>();
}

void ReduceScatterBucket::take() {
  at::Tensor arrived = arrival_K();
  if (is_packed_) {
    if (wire_) arrived = scratch_.take(arrived.numel(), grads_E_.options()).copy_(arrived);
    unpack_piece(arrived, pieces_, kept_, rank_, grads_E_);
    return;
  }
  // The window may start before the piece (dist/shard/bucket_shards.h); copy the piece alone.
  if (wire_)
    own_E_.copy_(
        arrived.narrow(0, pieces_.begin(rank_) - pieces_.window_begin(rank_), pieces_.size(rank_)));
  zero_dropped();
}

void ReduceScatterBucket::zero_dropped() {
  if (kept_.are_all()) return;
  if (grads_E_.is_cpu())
    zero_pruned(own_E_.mutable_data_ptr(), kept_.bits(rank_), own_E_.numel(),
                static_cast<int>(own_E_.itemsize()));
  else
    own_E_.masked_fill_(dropped_there_, 0);
}

bool ReduceScatterBucket::unpack(int64_t num_samples, Dropped /*dropped*/) {
  return divide_and_check(own_E_, num_samples);
}

}  // namespace lockstep::dist
