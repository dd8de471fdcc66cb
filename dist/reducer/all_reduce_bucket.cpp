// One bucket: pack() rounds or compacts the gradients into a payload, launch() all-reduces it, and
// unpack() writes the means back. Scratch memory stays, so that a steady step allocates nothing.
#include "dist/reducer/all_reduce_bucket.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>

#include "base/bits/bit_mask.h"
#include "base/bits/kept_bits.h"
#include "base/error.h"
#include "dist/bucket/mean_gradient.h"
#include "dist/shard/shard_slots.h"

namespace lockstep::dist {
namespace {

/// Returns the first items of `scratch`, which is reallocated if it is too small.
at::Tensor first_items(at::Tensor* scratch, int64_t num_items, const at::TensorOptions& options) {
  if (!scratch->defined() || scratch->numel() < num_items)
    *scratch = at::empty({num_items}, options);
  return scratch->narrow(0, 0, num_items);
}

}  // namespace

AllReduceBucket::AllReduceBucket(at::Tensor grads_E, std::optional<at::ScalarType> wire,
                                 std::shared_ptr<const DevicePacking> packing)
    : grads_E_(std::move(grads_E)), packing_(std::move(packing)), num_kept_(grads_E_.numel()) {
  check(grads_E_.dim() == 1 && grads_E_.is_contiguous(), "a bucket is a run of elements");
  // A type that is not narrower would cost a copy and save nothing.
  if (wire && c10::elementSize(*wire) < grads_E_.itemsize()) wire_ = wire;
}

void AllReduceBucket::set_kept(const uint8_t* bits, int64_t first_item) {
  keep_all();
  std::vector<uint8_t> kept(static_cast<size_t>(num_mask_bytes(num_elements())));
  copy_bits(bits, first_item, num_elements(), kept.data(), 0);
  const int64_t num_kept = count_kept(kept.data(), num_elements());
  // A mask that keeps everything is dropped: no passes for it, and can_pack() is false.
  if (num_kept == num_elements()) return;
  kept_bits_ = std::move(kept);
  num_kept_ = num_kept;
  if (packing_ != nullptr) mask_there_ = packing_->to_device(kept_bits_.data(), num_elements());
  if (grads_E_.is_cpu()) return;
  dropped_there_E_ = dropped_items(kept_bits_.data(), num_elements()).to(grads_E_.device());
}

void AllReduceBucket::keep_all() {
  kept_bits_.clear();
  num_kept_ = num_elements();
  mask_there_ = {};
  dropped_there_E_ = payload_ = packed_scratch_K_ = wire_scratch_ = at::Tensor();
}

at::Tensor AllReduceBucket::packed_K() {
  return first_items(&packed_scratch_K_, num_kept_, grads_E_.options());
}

void AllReduceBucket::pack_into(const at::Tensor& to_K) {
  if (packing_ != nullptr) return packing_->pack_kept(mask_there_, grads_E_, to_K);
  pack_kept(grads_E_.const_data_ptr(), kept_bits_.data(), num_elements(),
            static_cast<int>(grads_E_.itemsize()), to_K.mutable_data_ptr());
}

void AllReduceBucket::unpack_from(const at::Tensor& from_K, const at::Tensor& to_E) {
  if (packing_ != nullptr) return packing_->unpack_kept(mask_there_, from_K, to_E);
  unpack_kept(from_K.const_data_ptr(), kept_bits_.data(), num_elements(),
              static_cast<int>(from_K.itemsize()), to_E.mutable_data_ptr());
}

at::Tensor AllReduceBucket::pack(bool packed) {
  check(!packed || can_pack(), "packing where nothing is left out, or on a device that cannot");
  is_packed_ = packed;
  payload_ = grads_E_;
  if (packed) {
    payload_ = packed_K();
    pack_into(payload_);
  }
  // Rounding comes after compaction: fewer elements to convert.
  if (wire_) {
    const at::TensorOptions rounded = grads_E_.options().dtype(*wire_);
    payload_ = first_items(&wire_scratch_, payload_.numel(), rounded).copy_(payload_);
  }
  return payload_;
}

std::unique_ptr<Work> AllReduceBucket::launch(Communicator& comm) {
  return comm.all_reduce(payload_, ReduceOp::kSum);
}

bool AllReduceBucket::unpack(int64_t num_samples, Dropped dropped) {
  // Few kept elements: compact and divide only these, however they travelled.
  const bool by_kept = is_packed_ || (dropped == Dropped::kAnything && grads_E_.is_cpu() &&
                                      is_few(num_kept_, num_elements()));
  const at::Tensor sums = by_kept ? packed_K() : grads_E_;
  // Back to the gradients' type before the division, which rounds once.
  if (wire_) (is_packed_ ? sums : grads_E_).copy_(payload_);
  if (!is_packed_) by_kept ? pack_into(sums) : zero_dropped();
  const bool finite = divide_and_check(sums, num_samples);
  if (!by_kept) return finite;
  if (dropped == Dropped::kAnything && grads_E_.is_cpu())
    put_kept(sums.const_data_ptr(), kept_bits_.data(), num_elements(),
             static_cast<int>(sums.itemsize()), grads_E_.mutable_data_ptr());
  else
    unpack_from(sums, grads_E_);
  return finite;
}

void AllReduceBucket::zero_dropped() {
  if (kept_bits_.empty()) return;
  if (grads_E_.is_cpu())
    zero_pruned(grads_E_.mutable_data_ptr(), kept_bits_.data(), num_elements(),
                static_cast<int>(grads_E_.itemsize()));
  else
    grads_E_.masked_fill_(dropped_there_E_, 0);
}

}  // namespace lockstep::dist
