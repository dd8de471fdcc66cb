#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/params.h"
#include "dist/communicator.h"
#include "dist/reducer/bucket_reduction.h"
#include "dist/reducer/buckets.h"

/// Flat buffers in memory that all ranks of a host map, and the reduction of their buckets.
namespace lockstep::dist {

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

/// Reduction of a bucket whose gradients all ranks map (FlatBuffer::grads_by_rank). Each rank sums
/// its own piece over the ranks' buffers into its own buffer. No messages, so pack() and launch()
/// do nothing. unpack() reads what the other ranks wrote: a collective must come before it, and
/// another one before any rank writes gradients again.
class SharedBucket final : public BucketReduction {
 public:
  /// grads_by_rank: [E] each, parts of flat buffers, contiguous, whose memory stays valid.
  SharedBucket(std::vector<at::Tensor> grads_by_rank, const BucketShards& pieces, int rank);

  void set_kept(const uint8_t* bits, int64_t first_item) override;
  void keep_all() override { kept_.keep_all(); }
  const std::vector<uint8_t>& kept_bits() const override { return kept_.all_bits(); }
  bool can_pack() const override { return false; }

  int64_t dense_bytes() const override { return 0; }
  int64_t payload_bytes() const override { return 0; }

  at::Tensor pack(bool packed) override;
  bool travels_in_place() const override { return true; }
  std::unique_ptr<Work> launch(Communicator& comm) override;
  /// Sums, masks, divides and checks in one pass, or in one over the kept elements.
  bool unpack(int64_t num_samples, Dropped dropped) override;
  at::Tensor means_E() const override { return own_E_; }

 private:
  std::byte* own_bytes() const { return static_cast<std::byte*>(own_E_.mutable_data_ptr()); }
  /// Reduces one block of the own piece: all elements, or only the kept ones.
  bool reduce_all(int64_t begin_E, int64_t num_elements, int64_t num_samples);
  bool reduce_kept(int64_t begin_E, int64_t num_elements, int64_t num_samples, Dropped dropped);

  const BucketShards pieces_;
  const int rank_;
  ShardMasks kept_;
  at::Tensor own_E_;                           ///< the own piece of the own gradients
  std::vector<const std::byte*> own_by_rank_;  ///< the own piece in each rank's buffer
  // Members, so that a steady step allocates nothing.
  std::vector<const std::byte*> inputs_;
  std::vector<std::byte> packed_;  ///< kept elements of a block, by rank
};

}  // namespace lockstep::dist
