#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/param_shard.h"
#include "base/tensors/params.h"
#include "dist/bucket/buckets.h"
#include "dist/shard/bucket_shards.h"
#include "dist/sync_options.h"

namespace lockstep::dist {

/// Assignment of gradients to buckets and, if sharded (ZeRO stage 1), of shards to ranks. Equal on
/// all ranks except for the values of this rank.
class BucketAssignment {
 public:
  /// Starts without buffers, until the first rebuild(). The table must outlive this.
  BucketAssignment(const ParamTable& params, const SyncOptions& options, int rank, int world_size);

  /// Adopts these buffers if they differ from the previous ones. True if so.
  bool rebuild(const std::vector<FlatBuffer>& buffers);

  const std::vector<Bucket>& buckets() const { return buckets_; }
  size_t size() const { return buckets_.size(); }
  /// True if each rank owns a shard of each bucket.
  bool is_sharded() const { return is_sharded_; }
  /// True if all ranks map all gradients and values (FlatBuffer::grads_by_rank). With several
  /// ranks, buckets are then sharded.
  bool is_shared() const { return is_shared_; }
  /// Shards of a bucket. Only if is_sharded().
  const BucketShards& shards(size_t bucket) const { return shards_[bucket]; }

  /// Gradients by buffer; undefined if frozen.
  const std::vector<at::Tensor>& grads_by_buffer() const { return grads_by_buffer_; }
  /// Returns the gradients [E] of one bucket, of this rank.
  at::Tensor grads_E(size_t bucket) const;

  /// Returns the elements whose means this rank gets, by buffer and position; adjacent elements
  /// form one region.
  std::vector<ParamShard> local_shards() const;
  /// Elements per row of each parameter: row_elements() of the table.
  const std::vector<int64_t>& row_E_by_param() const { return row_E_by_param_; }
  /// Describes a bucket in messages: its number and first parameter.
  std::string text_of(size_t bucket) const;

 private:
  bool has(const std::vector<FlatBuffer>& buffers) const;
  std::vector<Bucket> cut(const std::vector<FlatBuffer>& buffers) const;

  const ParamTable& params_;
  const int64_t bucket_bytes_;
  const bool shards_optimizer_;
  const int rank_, world_size_;
  const std::vector<int64_t> row_E_by_param_;
  bool is_sharded_ = false, is_shared_ = false, has_any_ = false;
  std::vector<at::Tensor> grads_by_buffer_;
  std::vector<Bucket> buckets_;
  std::vector<BucketShards> shards_;  ///< by bucket; empty unless is_sharded_
};

/// Returns the part of a buffer that belongs to a bucket.
at::Tensor part_of(const at::Tensor& flat_E, const Bucket& bucket);

}  // namespace lockstep::dist
