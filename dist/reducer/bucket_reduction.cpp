// One bucket: pack() rounds or compacts the gradients into a payload, launch() reduces it, and
// unpack() writes the means back. Each piece's mask starts at a byte, so that a piece can be packed
// on its own. Scratch memory stays, so that a steady step allocates nothing.
#include "dist/reducer/bucket_reduction.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "base/error.h"
#include "base/simd/bit_mask.h"
#include "dist/tensor_math.h"

namespace lockstep::dist {

at::Tensor ScratchBuffer::take(int64_t num_items, const at::TensorOptions& options) {
  at::Tensor& scratch = buffers_[c10::typeMetaToScalarType(options.dtype())];
  if (!scratch.defined() || scratch.numel() < num_items) scratch = at::empty({num_items}, options);
  return scratch.narrow(0, 0, num_items);
}

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

/// Returns the elements of a piece.
at::Tensor piece_of(const at::Tensor& bucket_E, const BucketShards& pieces, int piece) {
  return bucket_E.narrow(0, pieces.begin(piece), pieces.size(piece));
}
/// Returns the window of K elements around a piece that travels for it.
at::Tensor window_of(const at::Tensor& bucket_E, const BucketShards& pieces, int piece) {
  return bucket_E.narrow(0, pieces.window_begin(piece), pieces.largest());
}

/// Returns slot `piece` of a message of num_pieces slots: [K].
at::Tensor slot_of(const at::Tensor& message_NK, int piece, int num_pieces) {
  const int64_t num_items = message_NK.numel() / num_pieces;
  return message_NK.narrow(0, piece * num_items, num_items);
}

/// Copies, with rounding if the types differ. Equal sizes.
void copy_items(const at::Tensor& from, const at::Tensor& to) {
  if (to.is_cpu() && to.scalar_type() == from.scalar_type()) {
    // memcpy is much cheaper than a call of ATen for small slots.
    if (to.nbytes() > 0) std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes());
  } else {
    to.copy_(from);
  }
}

/// Copies the kept elements of a piece to the front of a slot, followed by zeros. CPU; not if all
/// are kept.
void pack_piece(const at::Tensor& bucket_E, const BucketShards& pieces, const ShardMasks& kept,
                int piece, const at::Tensor& slot_K) {
  const at::Tensor own_E = piece_of(bucket_E, pieces, piece);
  pack_kept(own_E.const_data_ptr(), kept.bits(piece), own_E.numel(), item_bytes(own_E),
            slot_K.mutable_data_ptr());
  const int64_t num_kept = kept.count(piece);
  // Padding travels too. Zeros, so that its bytes are defined.
  slot_K.narrow(0, num_kept, slot_K.numel() - num_kept).zero_();
}

/// Copies the front of a slot back to the kept elements of a piece; other elements become zeros.
void unpack_piece(const at::Tensor& slot_K, const BucketShards& pieces, const ShardMasks& kept,
                  int piece, const at::Tensor& bucket_E) {
  const at::Tensor own_E = piece_of(bucket_E, pieces, piece);
  unpack_kept(slot_K.const_data_ptr(), kept.bits(piece), own_E.numel(), item_bytes(own_E),
              own_E.mutable_data_ptr());
}

/// Returns bool items on the CPU: true for each item that a mask drops.
at::Tensor dropped_items(const uint8_t* bits, int64_t num_items) {
  const at::Tensor dropped = at::empty({num_items}, at::kBool);
  bool* items = dropped.mutable_data_ptr<bool>();
  for (int64_t i = 0; i < num_items; ++i) items[i] = !is_kept(bits, i);
  return dropped;
}

/// True if compacting the kept elements is cheaper than a full pass.
bool is_few(int64_t num_kept, int64_t num_elements) { return 8 * num_kept <= num_elements; }

}  // namespace

BucketReduction::BucketReduction(at::Tensor grads_E, BucketShards pieces, int own)
    : grads_E_(std::move(grads_E)), pieces_(std::move(pieces)), own_(own), kept_(pieces_) {
  check(grads_E_.dim() == 1 && grads_E_.is_contiguous(), "a bucket is a run of elements");
  check(grads_E_.numel() == pieces_.num_elements(), "a bucket and its pieces");
  own_E_ = piece_of(grads_E_, pieces_, own_);
}

void BucketReduction::set_kept(const uint8_t* bits, int64_t first_item) {
  keep_all();
  kept_.set(bits, first_item);
  if (!kept_.are_all() && !grads_E_.is_cpu())
    dropped_on_device_ = dropped_items(own_bits(), own_E_.numel()).to(grads_E_.device());
}

void BucketReduction::keep_all() {
  kept_.keep_all();
  dropped_on_device_ = at::Tensor();
}

void BucketReduction::zero_dropped() {
  if (kept_.are_all()) return;
  if (grads_E_.is_cpu())
    zero_pruned(own_E_.mutable_data_ptr(), own_bits(), own_E_.numel(), item_bytes(own_E_));
  else
    own_E_.masked_fill_(dropped_on_device_, 0);
}

MessageBucket::MessageBucket(at::Tensor grads_E, BucketShards pieces, int own,
                             std::optional<at::ScalarType> wire, int64_t dense_items,
                             bool packs_here)
    : BucketReduction(std::move(grads_E), std::move(pieces), own),
      dense_bytes_(dense_items * static_cast<int64_t>(grads_E_.itemsize())),
      packs_here_(packs_here) {
  // A type that is not narrower would cost a copy and save nothing.
  if (wire && c10::elementSize(*wire) < grads_E_.itemsize()) wire_ = wire;
}

void MessageBucket::keep_all() {
  BucketReduction::keep_all();
  payload_ = at::Tensor();
}

void MessageBucket::round_payload(ScratchBuffer* scratch) {
  if (!wire_) return;
  const at::TensorOptions rounded = grads_E_.options().dtype(*wire_);
  payload_ = scratch->take(payload_.numel(), rounded).copy_(payload_);
}

void MessageBucket::ensure_packed(bool packed) {
  PackState before = PackState::kNone;
  if (!pack_state_.compare_exchange_strong(before, PackState::kUnderWay)) {
    pack_state_.wait(PackState::kUnderWay);
    check(pack_state_ == PackState::kDone, "another thread could not prepare a bucket");
    return;
  }
  times.start = Clock::now();
  try {
    pack(packed);
    pack_state_ = PackState::kDone;
  } catch (...) {
    pack_state_ = PackState::kFailed;
    pack_state_.notify_all();
    throw;
  }
  times.packed = Clock::now();
  pack_state_.notify_all();
}

// Every rank gets all means, so the bucket is one piece.
AllReduceBucket::AllReduceBucket(const at::Tensor& grads_E, std::optional<at::ScalarType> wire,
                                 std::shared_ptr<const DevicePacking> packing)
    : MessageBucket(grads_E, BucketShards({0, grads_E.numel()}), /*own=*/0, wire, grads_E.numel(),
                    grads_E.is_cpu() || packing != nullptr),
      packing_(std::move(packing)) {}

void AllReduceBucket::set_kept(const uint8_t* bits, int64_t first_item) {
  BucketReduction::set_kept(bits, first_item);
  if (packing_ != nullptr && !kept_.are_all())
    mask_on_device_ = packing_->to_device(own_bits(), grads_E_.numel());
}

void AllReduceBucket::keep_all() {
  MessageBucket::keep_all();
  mask_on_device_ = {};
  scratch_ = {};
}

at::Tensor AllReduceBucket::packed_K() {
  return scratch_.take(kept_.count(own_), grads_E_.options());
}

void AllReduceBucket::pack_into(const at::Tensor& to_K) {
  if (packing_ != nullptr) return packing_->pack_kept(mask_on_device_, grads_E_, to_K);
  pack_kept(grads_E_.const_data_ptr(), own_bits(), grads_E_.numel(), item_bytes(grads_E_),
            to_K.mutable_data_ptr());
}

void AllReduceBucket::unpack_from(const at::Tensor& from_K, const at::Tensor& to_E) {
  if (packing_ != nullptr) return packing_->unpack_kept(mask_on_device_, from_K, to_E);
  unpack_kept(from_K.const_data_ptr(), own_bits(), grads_E_.numel(), item_bytes(from_K),
              to_E.mutable_data_ptr());
}

at::Tensor AllReduceBucket::pack(bool packed) {
  check(!packed || can_pack(),
        "packing where no element is skipped, or on a device without support");
  is_packed_ = packed;
  payload_ = grads_E_;
  if (packed) {
    payload_ = packed_K();
    pack_into(payload_);
  }
  // Rounding comes after compaction: fewer elements to convert.
  round_payload(&scratch_);
  return payload_;
}

std::unique_ptr<Work> AllReduceBucket::launch(Communicator& comm) {
  return comm.all_reduce(payload_, ReduceOp::kSum);
}

bool AllReduceBucket::unpack(int64_t num_samples, Dropped dropped) {
  // Few kept elements: compact and divide only these, however they travelled.
  const bool by_kept = is_packed_ || (dropped == Dropped::kUndefined && grads_E_.is_cpu() &&
                                      is_few(kept_.count(own_), grads_E_.numel()));
  const at::Tensor sums = by_kept ? packed_K() : grads_E_;
  // Back to the gradients' type before the division, which rounds once.
  if (wire_) (is_packed_ ? sums : grads_E_).copy_(payload_);
  if (!is_packed_) by_kept ? pack_into(sums) : zero_dropped();
  const bool finite = divide_and_check(sums, num_samples);
  if (!by_kept) return finite;
  if (dropped == Dropped::kUndefined && grads_E_.is_cpu())
    put_kept(sums.const_data_ptr(), own_bits(), grads_E_.numel(), item_bytes(sums),
             grads_E_.mutable_data_ptr());
  else
    unpack_from(sums, grads_E_);
  return finite;
}

// Pieces of unequal size are copied into equal slots. launch() takes this rank's sums back at once,
// since the next bucket reuses the scratch memory.

ReduceScatterBucket::ReduceScatterBucket(const at::Tensor& grads_E, const BucketShards& pieces,
                                         int rank, std::optional<at::ScalarType> wire,
                                         ScratchBuffer& scratch)
    : MessageBucket(grads_E, pieces, rank, wire, pieces.num_pieces() * pieces.largest(),
                    grads_E.is_cpu()),
      scratch_(scratch),
      own_window_K_(window_of(grads_E_, pieces_, rank)) {}

void ReduceScatterBucket::load_windows() {
  const at::TensorOptions options = grads_E_.options();
  // Slots have one size, that of the largest piece; windows fill them with neighbouring elements.
  payload_ = scratch_.take(pieces_.num_pieces() * pieces_.largest(),
                           wire_ ? options.dtype(*wire_) : options);
  for (int piece = 0; piece < pieces_.num_pieces(); ++piece)
    copy_items(window_of(grads_E_, pieces_, piece), slot_of(payload_, piece, pieces_.num_pieces()));
}

void ReduceScatterBucket::load_kept() {
  payload_ = scratch_.take(pieces_.num_pieces() * kept_.largest(), grads_E_.options());
  for (int piece = 0; piece < pieces_.num_pieces(); ++piece)
    pack_piece(grads_E_, pieces_, kept_, piece, slot_of(payload_, piece, pieces_.num_pieces()));
  round_payload(&scratch_);
}

at::Tensor ReduceScatterBucket::pack(bool packed) {
  check(!packed || can_pack(), "packing where no element is skipped, or not on the CPU");
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
  return is_packed_ || wire_ ? slot_of(payload_, own_, pieces_.num_pieces()) : own_window_K_;
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
    unpack_piece(arrived, pieces_, kept_, own_, grads_E_);
    return;
  }
  // The window may start before the piece (dist/reducer/buckets.h); copy the piece alone.
  if (wire_)
    own_E_.copy_(
        arrived.narrow(0, pieces_.begin(own_) - pieces_.window_begin(own_), pieces_.size(own_)));
  zero_dropped();
}

bool ReduceScatterBucket::unpack(int64_t num_samples, Dropped /*dropped*/) {
  return divide_and_check(own_E_, num_samples);
}

int64_t ReduceScatterBucket::gather(Communicator& comm, const at::Tensor& values_E,
                                    bool packed) const {
  if (!packed && pieces_.are_equal()) {
    comm.all_gather(values_E, piece_of(values_E, pieces_, own_))->wait();
    return static_cast<int64_t>(values_E.nbytes());
  }
  const int num_ranks = pieces_.num_pieces();
  const int64_t slot_K = packed ? kept_.largest() : pieces_.largest();
  const at::Tensor message_NK = scratch_.take(num_ranks * slot_K, values_E.options());
  at::Tensor own_K = slot_of(message_NK, own_, num_ranks);
  if (packed)
    pack_piece(values_E, pieces_, kept_, own_, own_K);
  else
    own_K = window_of(values_E, pieces_, own_);
  comm.all_gather(message_NK, own_K)->wait();
  for (int piece = 0; piece < num_ranks; ++piece) {
    // The own piece stays as it is: unpacking would zero its dropped values.
    if (piece == own_) continue;
    const at::Tensor arrived_K = slot_of(message_NK, piece, num_ranks);
    if (packed)
      unpack_piece(arrived_K, pieces_, kept_, piece, values_E);
    else  // windows overlap, so only the piece inside a window is current
      copy_items(arrived_K.narrow(0, pieces_.begin(piece) - pieces_.window_begin(piece),
                                  pieces_.size(piece)),
                 piece_of(values_E, pieces_, piece));
  }
  return static_cast<int64_t>(message_NK.nbytes());
}

// No messages: all ranks map all gradients. Blocks keep the working set in the cache, so that sum,
// mask, division and check read memory once.

/// Block size in elements: fits L2 while the sum is masked, divided and checked. A multiple of 8,
/// so that blocks of a mask start at a byte.
constexpr int64_t kBlockElements = 16384;

SharedBucket::SharedBucket(const std::vector<at::Tensor>& grads_by_rank, const BucketShards& pieces,
                           int rank)
    : BucketReduction(grads_by_rank.at(static_cast<size_t>(rank)), pieces, rank),
      inputs_(grads_by_rank.size()) {
  for (const at::Tensor& grads_E : grads_by_rank) {
    check(grads_E.is_contiguous() && grads_E.is_cpu() && grads_E.numel() == grads_E_.numel(),
          "the same run of elements of each rank, on the CPU");
    own_by_rank_.push_back(
        static_cast<const std::byte*>(piece_of(grads_E, pieces_, own_).const_data_ptr()));
  }
}

bool SharedBucket::unpack(int64_t num_samples, Dropped dropped) {
  bool finite = true;
  for (int64_t begin_E = 0; begin_E < own_E_.numel(); begin_E += kBlockElements) {
    const int64_t num_here = std::min(kBlockElements, own_E_.numel() - begin_E);
    // Decided for each block, since masks are uneven.
    const bool are_few =
        !kept_.are_all() && is_few(count_kept(own_bits() + begin_E / 8, num_here), num_here);
    finite = (are_few ? reduce_kept(begin_E, num_here, num_samples, dropped)
                      : reduce_all(begin_E, num_here, num_samples)) &&
             finite;
  }
  return finite;
}

bool SharedBucket::reduce_all(int64_t begin_E, int64_t num_elements, int64_t num_samples) {
  const auto item_bytes = static_cast<int64_t>(own_E_.itemsize());
  const at::ScalarType dtype = own_E_.scalar_type();
  std::byte* const own = own_bytes() + begin_E * item_bytes;
  for (size_t r = 0; r < inputs_.size(); ++r) inputs_[r] = own_by_rank_[r] + begin_E * item_bytes;
  reduce_in_rank_order(inputs_, own, num_elements, dtype, ReduceOp::kSum);
  if (!kept_.are_all())
    zero_pruned(own, own_bits() + begin_E / 8, num_elements, static_cast<int>(item_bytes));
  return divide_and_check(own, num_elements, dtype, num_samples);
}

bool SharedBucket::reduce_kept(int64_t begin_E, int64_t num_elements, int64_t num_samples,
                               Dropped dropped) {
  const auto item_bytes = static_cast<int>(own_E_.itemsize());
  const at::ScalarType dtype = own_E_.scalar_type();
  const uint8_t* const bits = own_bits() + begin_E / 8;
  const int64_t begin_bytes = begin_E * item_bytes;
  constexpr int64_t kMostKept = kBlockElements / 8;  // largest num_kept for which is_few() holds
  const int64_t room_bytes = kMostKept * item_bytes;
  packed_.resize(inputs_.size() * static_cast<size_t>(room_bytes));
  int64_t num_kept = 0;
  for (size_t r = 0; r < inputs_.size(); ++r) {
    std::byte* const packed_K = packed_.data() + static_cast<int64_t>(r) * room_bytes;
    num_kept = pack_kept(own_by_rank_[r] + begin_bytes, bits, num_elements, item_bytes, packed_K);
    inputs_[r] = packed_K;
  }
  std::byte* const sums_K = packed_.data();
  // In place: the first rank's packed values become the sums.
  reduce_in_rank_order(inputs_, sums_K, num_kept, dtype, ReduceOp::kSum);
  const bool finite = divide_and_check(sums_K, num_kept, dtype, num_samples);
  (dropped == Dropped::kUndefined ? put_kept : unpack_kept)(sums_K, bits, num_elements, item_bytes,
                                                            own_bytes() + begin_bytes);
  return finite;
}

// Layout of shared memory: one copy for the values, then one copy for each rank's gradients, all
// with equal offsets.

/// Alignment: copies start at pages, buffers at cache lines.
constexpr int64_t kPageBytes = 4096, kLineBytes = 64;

static int64_t rounded_up(int64_t num_bytes, int64_t unit_bytes) {
  return (num_bytes + unit_bytes - 1) / unit_bytes * unit_bytes;
}

/// Returns the bytes of one copy of all parameters. Each parameter may start a buffer.
static int64_t bytes_of_copy(const ParamTable& params) {
  int64_t num_bytes = 0;
  for (const Param& param : params)
    num_bytes += rounded_up(static_cast<int64_t>(param.tensor.nbytes()), kLineBytes);
  return rounded_up(num_bytes, kPageBytes);
}

SharedFlatMemory::SharedFlatMemory(Communicator& comm, SharedMemory memory,
                                   const ParamTable& params)
    : comm_(comm), memory_(std::move(memory.begin)), copy_bytes_(bytes_of_copy(params)) {
  check(memory_ != nullptr, "shared buffers in existing memory");
}

int64_t SharedFlatMemory::bytes_for(const ParamTable& params, int num_ranks) {
  return (1 + num_ranks) * bytes_of_copy(params);
}

void SharedFlatMemory::begin() {
  // No rank may still read the old layout when a new one is written.
  comm_.barrier();
  given_bytes_ = 0;
}

at::Tensor SharedFlatMemory::part(int64_t begin_bytes, int64_t num_elements,
                                  at::ScalarType dtype) const {
  return at::from_blob(
      // Each tensor keeps the memory mapped.
      memory_.get() + begin_bytes, {num_elements}, [keep = memory_](void*) {},
      at::TensorOptions(dtype));
}

void SharedFlatMemory::give(FlatBuffer* buffer, int64_t num_elements, at::ScalarType dtype) {
  const int64_t begin_bytes = given_bytes_;
  given_bytes_ +=
      rounded_up(num_elements * static_cast<int64_t>(c10::elementSize(dtype)), kLineBytes);
  check(given_bytes_ <= copy_bytes_, "the buffers of a layout hold the parameters");
  buffer->values_E = part(begin_bytes, num_elements, dtype);
  if (buffer->frozen) return;
  for (int rank = 0; rank < comm_.world_size(); ++rank)
    buffer->grads_by_rank.push_back(
        part((1 + rank) * copy_bytes_ + begin_bytes, num_elements, dtype));
  buffer->grads_E = buffer->grads_by_rank[static_cast<size_t>(comm_.rank())];
}

}  // namespace lockstep::dist
