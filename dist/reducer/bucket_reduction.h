#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/device_backend.h"
#include "base/tensors/params.h"
#include "dist/communicator.h"
#include "dist/reducer/buckets.h"

/// Reductions of one bucket: all_reduce, reduce_scatter, or a sum in shared memory. Masks, slots
/// and payloads of its shards, and the flat memory that ranks of a host share.
namespace lockstep::dist {

/// Reusable memory for messages: for each type as large as the largest one, allocated at first use.
/// A tensor from take() is valid until the next take() of that type.
class ScratchBuffer {
 public:
  at::Tensor take(int64_t num_items, const at::TensorOptions& options);

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

/// Allowed contents of a gradient element that a mask drops.
enum class Dropped : uint8_t {
  kZero,      ///< +0
  kUndefined  ///< undefined, since it is never read
};

/// Reduction of one bucket's gradients to means: an all-reduce, a reduce-scatter, or a sum in
/// shared memory (dist/reduction_modes.h). Symbols: [E] = elements of the bucket.
///
/// After unpack() the gradients of this rank are sum over ranks / num_samples if kept. Dropped
/// elements are +0, unless Dropped allows anything. With one wire type, all kinds and formats give
/// the same bits, provided that the order of a sum depends on ranks alone (CPUs).
///
/// One thread at a time.
class BucketReduction {
 public:
  virtual ~BucketReduction() = default;

  /// Sets the kept positions: bits first_item, first_item + 1, ... of a mask
  /// (base/simd/bit_mask.h), copied.
  virtual void set_kept(const uint8_t* bits, int64_t first_item);
  /// Keeps all elements, the initial state.
  virtual void keep_all();
  /// Returns equal bytes for equal kept positions; empty while all are kept.
  const std::vector<uint8_t>& kept_bits() const { return kept_.all_bits(); }

  /// Writes the means into the gradients, after the reduction. False if a kept mean of this rank is
  /// not finite. On a device always true: there largest_of_all() checks means_E() of all buckets.
  virtual bool unpack(int64_t num_samples, Dropped dropped) = 0;
  /// Gradients of this rank, which unpack() turns into means.
  const at::Tensor& means_E() const { return own_E_; }

 protected:
  /// grads_E: part of a flat buffer, contiguous, whose memory stays valid. This rank gets the means
  /// of piece `own`.
  BucketReduction(at::Tensor grads_E, BucketShards pieces, int own);

  /// Sets dropped elements of the own piece to +0.
  void zero_dropped();
  const uint8_t* own_bits() const { return kept_.bits(own_); }

  const at::Tensor grads_E_;
  const BucketShards pieces_;
  const int own_;     ///< piece of this rank
  at::Tensor own_E_;  ///< its gradients
  ShardMasks kept_;
  at::Tensor dropped_on_device_;  ///< bool, of own_E_: on a device, while a mask is set
};

/// Reduction of a bucket whose gradients travel in a message:
///
///   reduction.pack(packed);  work = reduction.launch(comm);  work->wait();
///   finite = reduction.unpack(num_samples, Dropped::kZero);
///
///   dense   all gradients travel, in their own type
///   packed  only kept gradients travel, compacted, in order
///   wire    a narrower float type. Gradients are rounded to it before they travel, the
///           communicator adds in float32, and the sum is rounded to it once more. Division and
///           mean use the gradients' own type. Relative error without cancellation: 2 roundings,
///           2^-7 for bfloat16.
class MessageBucket : public BucketReduction {
 public:
  using Clock = std::chrono::steady_clock;
  /// Times of the current step.
  struct Times {
    Clock::time_point start, packed, launched, reduced;
    double unpack_s = 0;
  };

  void keep_all() override;
  /// True if packing is supported here and would omit something.
  bool can_pack() const { return !kept_.are_all() && packs_here_; }
  /// Bytes of the dense payload, unrounded.
  int64_t dense_bytes() const { return dense_bytes_; }
  /// Bytes of the last payload that pack() returned.
  int64_t payload_bytes() const { return static_cast<int64_t>(payload_.nbytes()); }
  /// True if the last payload is the gradients' own memory, left by pack() as backward wrote it.
  bool travels_in_place() const { return !is_packed_ && !wire_ && pieces_.are_equal(); }

  /// Returns the payload for the reduction. packed: only if can_pack().
  virtual at::Tensor pack(bool packed) = 0;
  /// Starts the reduction of the payload. Collective.
  virtual std::unique_ptr<Work> launch(Communicator& comm) = 0;

  /// Begins a step, for ensure_packed().
  void begin_step() { pack_state_ = PackState::kNone; }
  /// Calls pack() once in a step. Two threads may call it: the first one packs, the other one waits
  /// until that pack is complete.
  void ensure_packed(bool packed);

  Times times;

 protected:
  /// Rounds the payload to the wire type, in scratch memory. No effect without one.
  void round_payload(ScratchBuffer* scratch);

  /// dense_items: number of items that travel dense. packs_here: the device of the gradients packs.
  /// `wire`: nullopt, or a float type; one that is not narrower than the gradients' has no effect.
  MessageBucket(at::Tensor grads_E, BucketShards pieces, int own,
                std::optional<at::ScalarType> wire, int64_t dense_items, bool packs_here);

  std::optional<at::ScalarType> wire_;
  // of the last pack()
  bool is_packed_ = false;
  at::Tensor payload_;

 private:
  enum class PackState { kNone, kUnderWay, kDone, kFailed };

  const int64_t dense_bytes_;
  const bool packs_here_;
  std::atomic<PackState> pack_state_ = PackState::kNone;
};

/// Reduction of a bucket to every rank: an all_reduce in place. Symbols: [E] = elements of the
/// bucket, [K] = kept ones.
class AllReduceBucket final : public MessageBucket {
 public:
  /// `packing`: kernels of the gradients' device; null: they are packed on the CPU only.
  AllReduceBucket(const at::Tensor& grads_E, std::optional<at::ScalarType> wire,
                  std::shared_ptr<const DevicePacking> packing = nullptr);

  void set_kept(const uint8_t* bits, int64_t first_item) override;
  void keep_all() override;
  at::Tensor pack(bool packed) override;
  std::unique_ptr<Work> launch(Communicator& comm) override;
  bool unpack(int64_t num_samples, Dropped dropped) override;

 private:
  at::Tensor packed_K();
  void pack_into(const at::Tensor& to_K);
  void unpack_from(const at::Tensor& from_K, const at::Tensor& to_E);

  const std::shared_ptr<const DevicePacking> packing_;
  DeviceMask mask_on_device_;  ///< the mask on the device, for packing_
  ScratchBuffer scratch_;      ///< of each bucket, since several may travel at a time
};

/// Reduction of a sharded bucket: a reduce_scatter that gives each rank its own piece. The
/// gradients of all other pieces are overwritten and undefined afterwards.
///
/// Symbols: N = ranks, [K] = the items of the largest piece, dense or packed. The communicator's
/// slots have one size, so a message has up to N * K - E padding items. Equal pieces travel from
/// the gradients' own memory. Others travel in `scratch`, which all buckets share. launch() orders
/// all later work of the stream (on the CPU: of the caller) after the reduction.
class ReduceScatterBucket final : public MessageBucket {
 public:
  /// The scratch buffer must outlive this.
  ReduceScatterBucket(const at::Tensor& grads_E, const BucketShards& pieces, int rank,
                      std::optional<at::ScalarType> wire, ScratchBuffer& scratch);

  at::Tensor pack(bool packed) override;
  std::unique_ptr<Work> launch(Communicator& comm) override;
  bool unpack(int64_t num_samples, Dropped dropped) override;

  /// Gathers all pieces of values_E [E] on every rank, after each rank has updated its own piece.
  /// Bits are those of the owners. Collective; one all_gather. Returns the payload of all ranks
  /// together in bytes: N * K items.
  ///
  /// packed: only kept values travel, and other values of a remote piece become +0. With enforced
  /// masks they are +0 already (recal/masks/mask_table.h), and every optimizer keeps them so. Only
  /// if can_pack(). Equal dense pieces are gathered in place.
  int64_t gather(Communicator& comm, const at::Tensor& values_E, bool packed) const;

 private:
  /// Returns the slot that receives this rank's sums.
  at::Tensor arrival_K() const;
  void load_windows();
  void load_kept();
  void take();

  ScratchBuffer& scratch_;
  at::Tensor own_window_K_;  ///< part of grads_E_
};

/// Reduction of a bucket whose gradients all ranks map (FlatBuffer::grads_by_rank). Each rank sums
/// its own piece over the ranks' buffers into its own buffer. unpack() reads what the other ranks
/// wrote: a collective must come before it, and another one before any rank writes gradients again.
class SharedBucket final : public BucketReduction {
 public:
  /// grads_by_rank: [E] each, parts of flat buffers, contiguous, whose memory stays valid.
  SharedBucket(const std::vector<at::Tensor>& grads_by_rank, const BucketShards& pieces, int rank);

  /// Sums, masks, divides and checks in one pass, or in one over the kept elements.
  bool unpack(int64_t num_samples, Dropped dropped) override;

 private:
  std::byte* own_bytes() const { return static_cast<std::byte*>(own_E_.mutable_data_ptr()); }
  /// Reduces one block of the own piece: all elements, or only the kept ones.
  bool reduce_all(int64_t begin_E, int64_t num_elements, int64_t num_samples);
  bool reduce_kept(int64_t begin_E, int64_t num_elements, int64_t num_samples, Dropped dropped);

  std::vector<const std::byte*> own_by_rank_;  ///< the own piece in each rank's buffer
  // Members, so that a steady step allocates nothing.
  std::vector<const std::byte*> inputs_;
  std::vector<std::byte> packed_;  ///< kept elements of a block, by rank
};

/// Flat buffers in memory that all ranks map: values first, then each rank's gradients, buffer by
/// buffer, each aligned to a cache line.
class SharedFlatMemory final : public FlatMemory {
 public:
  /// memory: bytes_for() bytes, from comm.share_memory(). `comm` must outlive this.
  SharedFlatMemory(Communicator& comm, SharedMemory memory, const ParamTable& params);

  /// Bytes for any layout of these parameters, whichever are trainable.
  static int64_t bytes_for(const ParamTable& params, int num_ranks);

  void begin() override;
  void give(FlatBuffer* buffer, int64_t num_elements, at::ScalarType dtype) override;
  bool is_writer() const override { return comm_.rank() == 0; }
  void meet() override { comm_.barrier(); }

 private:
  at::Tensor part(int64_t begin_bytes, int64_t num_elements, at::ScalarType dtype) const;

  Communicator& comm_;
  const std::shared_ptr<std::byte> memory_;
  const int64_t copy_bytes_;  ///< size of one copy of all parameters
  int64_t given_bytes_ = 0;   ///< used so far in each copy
};

}  // namespace lockstep::dist
