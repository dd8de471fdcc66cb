// Reduction of one bucket: masks and slots of its shards, gather, all_reduce, reduce_scatter.
#include "dist/reducer/bucket_reduction.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/ops/empty.h>

#include "base/error.h"
#include "base/simd/bit_mask.h"
#include "dist/communicator.h"
#include "dist/tensor_math.h"

namespace lockstep::dist {

// ShardMasks: each piece's mask starts at a byte, so that a piece can be packed on its own.

ShardMasks::ShardMasks(const BucketShards& pieces) : pieces_(pieces) {
  int64_t offset_bytes = 0;
  for (int piece = 0; piece < pieces_.num_pieces(); ++piece) {
    bit_offsets_bytes_.push_back(offset_bytes);
    offset_bytes += num_mask_bytes(pieces_.size(piece));
  }
  bit_offsets_bytes_.push_back(offset_bytes);
  keep_all();
}

void ShardMasks::keep_all() {
  bits_.clear();
  counts_.clear();
  for (int piece = 0; piece < pieces_.num_pieces(); ++piece) counts_.push_back(pieces_.size(piece));
  largest_ = pieces_.largest();
}

void ShardMasks::set(const uint8_t* bits, int64_t first_item) {
  keep_all();
  std::vector<uint8_t> kept(static_cast<size_t>(bit_offsets_bytes_.back()));
  std::vector<int64_t> counts;
  int64_t num_kept = 0;
  for (int piece = 0; piece < pieces_.num_pieces(); ++piece) {
    uint8_t* here = kept.data() + bit_offsets_bytes_[static_cast<size_t>(piece)];
    copy_bits(bits, first_item + pieces_.begin(piece), pieces_.size(piece), here, 0);
    counts.push_back(count_kept(here, pieces_.size(piece)));
    num_kept += counts.back();
  }
  // A mask that keeps everything is dropped.
  if (num_kept == pieces_.num_elements()) return;
  bits_ = std::move(kept);
  counts_ = std::move(counts);
  largest_ = *std::max_element(counts_.begin(), counts_.end());
}

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

// gather_pieces(): three forms of the same gather: packed, in place (equal shards), and through
// windows.

namespace {

int64_t gather_kept(Communicator& comm, const at::Tensor& values_E, const BucketShards& pieces,
                    const ShardMasks& kept, ScratchBuffer& scratch) {
  const int num_ranks = pieces.num_pieces();
  const at::Tensor message_NK = scratch.take(num_ranks * kept.largest(), values_E.options());
  const at::Tensor own_K = slot_of(message_NK, comm.rank(), num_ranks);
  pack_piece(values_E, pieces, kept, comm.rank(), own_K);
  comm.all_gather(message_NK, own_K)->wait();
  for (int piece = 0; piece < num_ranks; ++piece)
    // The own piece stays as it is: unpacking would zero its dropped values.
    if (piece != comm.rank())
      unpack_piece(slot_of(message_NK, piece, num_ranks), pieces, kept, piece, values_E);
  return static_cast<int64_t>(message_NK.nbytes());
}

int64_t gather_in_place(Communicator& comm, const at::Tensor& values_E,
                        const BucketShards& pieces) {
  comm.all_gather(values_E, piece_of(values_E, pieces, comm.rank()))->wait();
  return static_cast<int64_t>(values_E.nbytes());
}

int64_t gather_windows(Communicator& comm, const at::Tensor& values_E, const BucketShards& pieces,
                       ScratchBuffer& scratch) {
  const int num_ranks = pieces.num_pieces();
  const at::Tensor message_NK = scratch.take(num_ranks * pieces.largest(), values_E.options());
  comm.all_gather(message_NK, window_of(values_E, pieces, comm.rank()))->wait();
  for (int piece = 0; piece < num_ranks; ++piece) {
    // Windows overlap, so only the piece inside a window is current.
    if (piece == comm.rank()) continue;
    const int64_t skipped = pieces.begin(piece) - pieces.window_begin(piece);
    copy_items(slot_of(message_NK, piece, num_ranks).narrow(0, skipped, pieces.size(piece)),
               piece_of(values_E, pieces, piece));
  }
  return static_cast<int64_t>(message_NK.nbytes());
}

}  // namespace

int64_t gather_pieces(Communicator& comm, const at::Tensor& values_E, const BucketShards& pieces,
                      const ShardMasks& kept, bool packed, ScratchBuffer& scratch) {
  if (packed) return gather_kept(comm, values_E, pieces, kept, scratch);
  if (pieces.are_equal()) return gather_in_place(comm, values_E, pieces);
  return gather_windows(comm, values_E, pieces, scratch);
}

// AllReduceBucket: pack() rounds or compacts the gradients into a payload, launch() all-reduces it,
// and unpack() writes the means back. Scratch memory stays, so that a steady step allocates
// nothing.

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

// ReduceScatterBucket: pieces of unequal size are copied into equal slots. launch() takes this
// rank's sums back at once, since the next bucket reuses the scratch memory.

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
  // The window may start before the piece (dist/reducer/buckets.h); copy the piece alone.
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
