#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "base/tensors/device_backend.h"
#include "dist/communicator.h"
#include "dist/reducer/buckets.h"

/// Reduction of one bucket, as an all_reduce or a reduce_scatter: masks and slots of its shards,
/// and payloads.
namespace lockstep::dist {

/// Reusable memory for messages: for each type as large as the largest one, allocated at first use.
/// A tensor from take() is valid until the next take() of that type.
class ScratchBuffer {
 public:
  at::Tensor take(int64_t num_items, const at::TensorOptions& options) {
    at::Tensor& scratch = buffers_[c10::typeMetaToScalarType(options.dtype())];
    if (!scratch.defined() || scratch.numel() < num_items)
      scratch = at::empty({num_items}, options);
    return scratch.narrow(0, 0, num_items);
  }

 private:
  std::map<at::ScalarType, at::Tensor> buffers_;
};

/// Kept elements of a bucket, by piece (dist/reducer/buckets.h). In packed form, the kept
/// elements of piece r are the first ones of slot r of N. Each slot has largest() items.
class ShardMasks {
 public:
  explicit ShardMasks(const BucketShards& pieces);

  /// Sets the mask: bits first_item, first_item + 1, ... of `bits` (base/simd/bit_mask.h), copied.
  void set(const uint8_t* bits, int64_t first_item);
  void keep_all();

  /// True initially, and if the mask drops nothing.
  bool are_all() const { return bits_.empty(); }
  /// Masks of all pieces, each starting at a byte; empty if are_all().
  const std::vector<uint8_t>& all_bits() const { return bits_; }
  /// Mask of one piece; not if are_all().
  const uint8_t* bits(int piece) const {
    return bits_.data() + bit_offsets_bytes_[static_cast<size_t>(piece)];
  }
  int64_t count(int piece) const { return counts_[static_cast<size_t>(piece)]; }
  int64_t largest() const { return largest_; }

 private:
  BucketShards pieces_;
  std::vector<uint8_t> bits_;
  // by piece
  std::vector<int64_t> bit_offsets_bytes_, counts_;
  int64_t largest_ = 0;
};

// Copies between a bucket's elements [E] and the N slots of a message [N * K], for both directions
// (AllReduceBucket, ReduceScatterBucket). BucketShards gives the slots, ShardMasks the packed form.
// Returned tensors are views.

/// Returns one rank's own elements, and the window of K elements around them that travels.
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

/// Allowed contents of a gradient element that a mask drops.
enum class Dropped : uint8_t {
  kZero,     ///< +0
  kAnything  ///< undefined, since it is never read
};

/// True if compacting the kept elements is cheaper than a full pass.
inline bool is_few(int64_t num_kept, int64_t num_elements) { return 8 * num_kept <= num_elements; }

/// Reduction of one bucket's gradients:
///
///   reduction.pack(packed);  work = reduction.launch(comm);  work->wait();
///   finite = reduction.unpack(num_samples, Dropped::kZero);
///
/// Symbols: [E] = elements of the bucket. Afterwards the gradients of this rank are sum over ranks
/// / num_samples if kept. Dropped elements are +0, unless Dropped allows anything. With one wire
/// type, all implementations and formats give the same bits, provided that the order of a sum
/// depends on ranks alone (CPUs).
///
///   dense   all gradients travel, in their own type
///   packed  only kept gradients travel, compacted, in order
///   wire    a narrower float type. Gradients are rounded to it before they travel, the
///           communicator adds in float32, and the sum is rounded to it once more. Division and
///           mean use the gradients' own type. Relative error without cancellation: 2 roundings,
///           2^-7 for bfloat16.
///
/// Call pack(), launch() and unpack() in this order; one thread at a time.
class BucketReduction {
 public:
  virtual ~BucketReduction() = default;

  /// Sets the kept positions: bits first_item, first_item + 1, ... of a mask
  /// (base/simd/bit_mask.h), copied.
  virtual void set_kept(const uint8_t* bits, int64_t first_item) = 0;
  /// Keeps all elements, the initial state.
  virtual void keep_all() = 0;
  /// Returns equal bytes for equal kept positions; empty while all are kept.
  virtual const std::vector<uint8_t>& kept_bits() const = 0;
  /// True if packing is supported here and would omit something.
  virtual bool can_pack() const = 0;

  /// Bytes of the dense payload, unrounded.
  virtual int64_t dense_bytes() const = 0;
  /// Bytes of the last payload that pack() returned.
  virtual int64_t payload_bytes() const = 0;

  /// Returns the payload for the reduction. packed: only if can_pack().
  virtual at::Tensor pack(bool packed) = 0;
  /// True if the last payload is the gradients' own memory, left by pack() as backward wrote it.
  virtual bool travels_in_place() const = 0;
  /// Starts the reduction of the payload. Collective.
  virtual std::unique_ptr<Work> launch(Communicator& comm) = 0;
  /// Writes the means into the gradients, after the reduction. False if a kept mean of this rank is
  /// not finite. On a device always true, since the answer would block the host. There
  /// largest_of_all() (dist/tensor_math.h) checks means_E() of all buckets.
  virtual bool unpack(int64_t num_samples, Dropped dropped) = 0;
  /// Gradients of this rank, which unpack() turns into means.
  virtual at::Tensor means_E() const = 0;
};

/// Reduction of a bucket to every rank: an all_reduce in place. Symbols: [E] = elements of the
/// bucket, [K] = kept ones.
class AllReduceBucket final : public BucketReduction {
 public:
  /// grads_E: part of a flat buffer, contiguous, whose memory stays valid. `wire`: nullopt, or a
  /// float type; one that is not narrower than the gradients' has no effect. `packing`: kernels of
  /// the gradients' device; null: they are packed on the CPU only.
  AllReduceBucket(at::Tensor grads_E, std::optional<at::ScalarType> wire,
                  std::shared_ptr<const DevicePacking> packing = nullptr);

  void set_kept(const uint8_t* bits, int64_t first_item) override;
  void keep_all() override;
  const std::vector<uint8_t>& kept_bits() const override { return kept_bits_; }
  bool can_pack() const override {
    return !kept_bits_.empty() && (grads_E_.is_cpu() || packing_ != nullptr);
  }

  int64_t num_elements() const { return grads_E_.numel(); }
  int64_t dense_bytes() const override { return static_cast<int64_t>(grads_E_.nbytes()); }
  int64_t payload_bytes() const override { return static_cast<int64_t>(payload_.nbytes()); }

  at::Tensor pack(bool packed) override;
  bool travels_in_place() const override { return !is_packed_ && !wire_; }
  std::unique_ptr<Work> launch(Communicator& comm) override;
  bool unpack(int64_t num_samples, Dropped dropped) override;
  at::Tensor means_E() const override { return grads_E_; }

 private:
  at::Tensor packed_K();
  void pack_into(const at::Tensor& to_K);
  void unpack_from(const at::Tensor& from_K, const at::Tensor& to_E);
  void zero_dropped();

  at::Tensor grads_E_;
  std::optional<at::ScalarType> wire_;
  std::shared_ptr<const DevicePacking> packing_;
  std::vector<uint8_t> kept_bits_;
  int64_t num_kept_;
  DeviceMask mask_there_;       ///< the mask on the device, for packing_
  at::Tensor dropped_there_E_;  ///< bool, on a device; undefined on the CPU and while all are kept
  // of the last pack()
  bool is_packed_ = false;
  at::Tensor payload_;
  // scratch memory, allocated at first use
  at::Tensor packed_scratch_K_, wire_scratch_;
};

/// Reduction of a sharded bucket: a reduce_scatter that gives each rank its own piece. The
/// gradients of all other pieces are overwritten and undefined afterwards.
///
/// Symbols: N = ranks, [K] = the items of the largest piece, dense or packed. The communicator's
/// slots have one size, so a message has up to N * K - E padding items. Equal pieces travel from
/// the gradients' own memory. Others travel in `scratch`, which all buckets share.
///
/// launch() orders all later work of the stream (on the CPU: of the caller) after the reduction, so
/// that the scratch buffer is free again.
class ReduceScatterBucket final : public BucketReduction {
 public:
  /// grads_E: part of a flat buffer, contiguous, whose memory stays valid. `wire`: nullopt, or a
  /// float type; one that is not narrower than the gradients' has no effect. The scratch buffer
  /// must outlive this.
  ReduceScatterBucket(at::Tensor grads_E, BucketShards pieces, int rank,
                      std::optional<at::ScalarType> wire, ScratchBuffer& scratch);

  void set_kept(const uint8_t* bits, int64_t first_item) override;
  void keep_all() override;
  const std::vector<uint8_t>& kept_bits() const override { return kept_.all_bits(); }
  bool can_pack() const override { return !kept_.are_all() && grads_E_.is_cpu(); }

  /// Bytes of N * K items of the gradients' type.
  int64_t dense_bytes() const override;
  int64_t payload_bytes() const override { return static_cast<int64_t>(payload_.nbytes()); }

  at::Tensor pack(bool packed) override;
  bool travels_in_place() const override { return !is_packed_ && !wire_ && pieces_.are_equal(); }
  std::unique_ptr<Work> launch(Communicator& comm) override;
  bool unpack(int64_t num_samples, Dropped dropped) override;
  at::Tensor means_E() const override { return own_E_; }

  const ShardMasks& kept() const { return kept_; }

 private:
  at::Tensor slot(const at::Tensor& message_NK, int piece) const;
  /// Returns the slot that receives this rank's sums.
  at::Tensor arrival_K() const;
  void load_windows();
  void load_kept();
  void take();
  void zero_dropped();

  at::Tensor grads_E_;
  BucketShards pieces_;
  int rank_;
  std::optional<at::ScalarType> wire_;
  ScratchBuffer& scratch_;
  ShardMasks kept_;
  at::Tensor own_E_, own_window_K_;  ///< parts of grads_E_
  at::Tensor dropped_there_;         ///< bool, of own_E_: on a device, while a mask is set
  // of the last pack()
  bool is_packed_ = false;
  at::Tensor payload_;  ///< [N * K]
};

}  // namespace lockstep::dist
