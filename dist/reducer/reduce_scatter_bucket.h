#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dist/bucket/scratch_buffer.h"
#include "dist/reducer/bucket_reduction.h"
#include "dist/shard/bucket_shards.h"
#include "dist/shard/shard_masks.h"

namespace lockstep::dist {

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
