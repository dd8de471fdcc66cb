#include "dist/reducer/reduce_scatter_bucket.h"

#include <utility>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/maximum.h>

#include "base/bits/bit_mask.h"
#include "base/bits/kept_bits.h"
#include "base/error.h"
#include "dist/backend_parts.h"
#include "dist/bucket/mean_gradient.h"
#include "dist/bucket/wire_rounding.h"
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

void ReduceScatterBucket::load_windows(const at::Tensor& errors_E) {
  const at::TensorOptions options = grads_E_.options();
  payload_ = scratch_.take(pieces_.num_pieces() * pieces_.largest(),
                           wire_ ? options.dtype(*wire_) : options);
  if (wire_ && grads_E_.is_cpu()) zero_all_dropped();  // largest() is as when packed
  largest_ = at::Tensor();
  for (int piece = 0; piece < pieces_.num_pieces(); ++piece) {
    const at::Tensor window_K = window_of(grads_E_, pieces_, piece);
    if (!wire_) {
      copy_items(window_K, slot(payload_, piece));
      continue;
    }
    const at::Tensor here =
        round_to_wire(window_K, scale_, slot(payload_, piece),
                      errors_E.defined() ? window_of(errors_E, pieces_, piece) : errors_E);
    largest_ = largest_.defined() ? at::maximum(largest_, here) : here;
  }
}

void ReduceScatterBucket::load_kept(const at::Tensor& errors_E) {
  payload_ = scratch_.take(pieces_.num_pieces() * kept_.largest(), grads_E_.options());
  for (int piece = 0; piece < pieces_.num_pieces(); ++piece)
    pack_piece(grads_E_, pieces_, kept_, piece, slot(payload_, piece));
  if (!wire_) return;
  const at::Tensor rounded = scratch_.take(payload_.numel(), grads_E_.options().dtype(*wire_));
  const at::Tensor errors = errors_E.defined() ? at::empty_like(payload_) : errors_E;
  largest_ = round_to_wire(payload_, scale_, rounded, errors);
  payload_ = rounded;
  if (!errors_E.defined()) return;
  for (int piece = 0; piece < pieces_.num_pieces(); ++piece)
    unpack_piece(slot(errors, piece), pieces_, kept_, piece, errors_E);
}

at::Tensor ReduceScatterBucket::find_largest() {
  if (grads_E_.is_cpu()) zero_all_dropped();
  return largest_magnitude(grads_E_);
}

at::Tensor ReduceScatterBucket::pack(bool packed, double scale, const at::Tensor& errors_E) {
  check(!packed || can_pack(), "packing where nothing is left out, or not on the CPU");
  is_packed_ = packed;
  scale_ = scale;
  if (packed)
    load_kept(errors_E);
  else if (travels_in_place())
    payload_ = grads_E_;
  else
    load_windows(errors_E);
  return payload_;
}

at::Tensor ReduceScatterBucket::arrival_K() const {
  return is_packed_ || wire_ ? slot(payload_, rank_) : own_window_K_;
}

std::unique_ptr<Work> ReduceScatterBucket::launch(Communicator& comm) {
  comm.reduce_scatter(arrival_K(), payload_)->wait();
  take();
  return std::make_unique<DoneWork>();
}

void ReduceScatterBucket::take() {
  at::Tensor arrived = arrival_K();
  if (is_packed_) {
    if (wire_) {
      const at::Tensor wide = scratch_.take(arrived.numel(), grads_E_.options());
      widen_from_wire(arrived, scale_, wide);
      arrived = wide;
    }
    unpack_piece(arrived, pieces_, kept_, rank_, grads_E_);
    return;
  }
  if (wire_)
    widen_from_wire(
        arrived.narrow(0, pieces_.begin(rank_) - pieces_.window_begin(rank_), pieces_.size(rank_)),
        scale_, own_E_);
  zero_dropped();
}

/// On the CPU.
void ReduceScatterBucket::zero_all_dropped() {
  if (kept_.are_all()) return;
  for (int piece = 0; piece < pieces_.num_pieces(); ++piece) {
    const at::Tensor piece_E = piece_of(grads_E_, pieces_, piece);
    zero_pruned(piece_E.mutable_data_ptr(), kept_.bits(piece), piece_E.numel(),
                static_cast<int>(piece_E.itemsize()));
  }
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
