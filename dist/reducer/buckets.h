#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/param_info.h"
#include "base/tensors/params.h"
#include "dist/reduction_modes.h"

/// Assignment of gradients to buckets, and of shards of buckets to ranks.
namespace lockstep::dist {

/// Properties of one parameter that the plan needs.
struct PlannedParam {
  int64_t num_bytes = 0;
  int64_t group = 0;  ///< of dtype, decay, learning rate; groups never share a bucket
};

/// Assigns parameters to buckets: returns a list of buckets, each a list of indices into
/// `params_in_model_order`.
///
/// Backward produces gradients from the last parameter to the first. So buckets are filled in that
/// order (their indices descend), and are sorted by the order in which they become complete. A
/// bucket takes parameters of its group until the next one would exceed bucket_bytes. A larger
/// parameter has a bucket to itself. Every parameter is in one bucket.
///
/// A pure function of values that are equal on all ranks, so the plan is equal too. bucket_bytes >
/// 0.
std::vector<std::vector<int64_t>> plan_buffers(
    const std::vector<PlannedParam>& params_in_model_order, int64_t bucket_bytes);

/// Positions where one parameter may be divided among ranks: between rows, and inside a row at
/// multiples of kCutElements (base/tensors/square_sums.h). Positions count from the parameter's
/// first element. at_E is 0 to num_elements; every function is monotonic in it.
struct RowBorders {
  int64_t num_elements = 0;
  int64_t row_E = 1;

  /// Returns the nearest multiple of num_rows rows, or the parameter's end.
  int64_t nearest(int64_t at_E, int64_t num_rows = 1) const;
  /// Returns the nearest row border, or the nearest cut inside the row.
  int64_t nearest_cut(int64_t at_E) const;
};

/// Largest size of a step's first bucket. Until it leaves, the network is idle. It still contains a
/// whole parameter if that fits in a bucket, and whole rows if buckets are sharded.
inline constexpr int64_t kFirstBucketBytes = 1 << 20;

inline constexpr int64_t kUnlimitedBytes = std::numeric_limits<int64_t>::max();

/// Elements of one flat buffer whose gradients travel in one message.
struct Bucket {
  size_t buffer = 0;  ///< index in the list of buffers
  int64_t begin_E = 0;
  int64_t end_E = 0;
  std::vector<int64_t> params;  ///< with gradients in it, whole or in part, in memory order

  int64_t num_elements() const { return end_E - begin_E; }
};

/// Cuts the trainable buffers into buckets of at most bucket_bytes, in the order in which backward
/// completes them. bucket_bytes > 0; a bucket has at least one element. kUnlimitedBytes: each
/// buffer is one bucket.
///
/// Backward produces gradients from the last parameter of the model to the first. A bucket is
/// complete with that of its parameters that comes first in the model. So buckets are sorted by
/// this parameter, in descending order. A bucket contains whole parameters as long as the next one
/// fits. A parameter larger than a bucket is cut into near-equal pieces, each a separate bucket.
/// The step's first bucket is smaller. A matrix (FlatBuffer::is_matrix) is one bucket of any size.
/// Elements of a buffer without slices belong to no parameter
/// and come last. Each element is in exactly one bucket.
///
/// With row_E_by_param the buckets will be sharded among num_pieces ranks. A parameter larger than
/// a bucket is then cut between rows, if possible after a multiple of num_pieces rows, so that
/// pieces can be equal. It is cut inside a row only if the row is larger than a bucket. A bucket
/// may exceed bucket_bytes by these rows, or by kCutElements.
///
/// A pure function of values that are equal on all ranks, so the buckets are equal too.
std::vector<Bucket> cut_into_buckets(const std::vector<FlatBuffer>& buffers, int64_t bucket_bytes,
                                     const std::vector<int64_t>& row_E_by_param = {},
                                     int num_pieces = 1);

/// Returns the number of buckets before those that backward completes last. These are the pieces of
/// one parameter, or one bucket.
size_t num_before_last_to_come(const std::vector<Bucket>& buckets);

/// Shards of a bucket, one for each of N ranks (ZeRO stage 1). Rank r owns the elements [begin(r),
/// begin(r) + size(r)), counted from the bucket's first. A shard may be empty.
///
/// reduce_scatter and all_gather need N slots of one size, K = largest() elements. Slot r is the
/// window of K elements of the bucket that contains shard r. Neighbouring windows may overlap:
/// elements of a window outside its shard are ignored.
class BucketShards {
 public:
  /// borders_E: N + 1 of them, ascending, from 0 to the number of elements of the bucket.
  explicit BucketShards(std::vector<int64_t> borders_E);

  int num_pieces() const { return static_cast<int>(borders_E_.size()) - 1; }
  int64_t num_elements() const { return borders_E_.back(); }
  int64_t begin(int piece) const { return borders_E_[static_cast<size_t>(piece)]; }
  int64_t size(int piece) const { return begin(piece + 1) - begin(piece); }
  int64_t largest() const { return largest_; }
  int64_t window_begin(int piece) const {
    return std::min(begin(piece), num_elements() - largest_);
  }
  /// True if all shards have one size, so that the bucket itself is the message.
  bool are_equal() const { return largest_ * num_pieces() == num_elements(); }

 private:
  std::vector<int64_t> borders_E_;
  int64_t largest_ = 0;
};

/// Divides a bucket of `buffer` into num_pieces near-equal shards. Each border is that of an even
/// division, moved to the nearest row border of the parameter there. So a shard differs from an
/// even one by at most one row. A row longer than an even shard is cut inside, at a multiple of
/// kCutElements from its first element. In a buffer without slices, a row is an element.
///
/// row_E_by_param: row_elements(), or several rows that are not divided. A pure function of values
/// that are equal on all ranks.
BucketShards cut_into_pieces(const Bucket& bucket, const FlatBuffer& buffer,
                             const std::vector<int64_t>& row_E_by_param, int num_pieces);

/// Assignment of gradients to buckets and, if sharded (ZeRO stage 1), of shards to ranks. One rank
/// owns a whole matrix; matrices are divided by the cost of their updates. Equal on all ranks
/// except for the values of this rank.
class BucketAssignment {
 public:
  /// Starts without buffers, until the first rebuild(). The table must outlive this.
  BucketAssignment(const ParamTable& params, const SyncOptions& options, int rank, int world_size);

  /// Adopts these buffers if they differ from the previous ones. True if so.
  bool rebuild(const std::vector<FlatBuffer>& buffers);

  const std::vector<Bucket>& buckets() const { return buckets_; }
  size_t size() const { return buckets_.size(); }
  /// True if each rank owns a shard of each bucket.
  bool is_sharded() const { return kind_ != ReductionKind::kAllReduce; }
  /// True if several ranks map all gradients and values (FlatBuffer::grads_by_rank).
  bool is_shared() const { return kind_ == ReductionKind::kShared; }
  /// Shards of a bucket. Only if is_sharded().
  const BucketShards& shards(size_t bucket) const { return shards_[bucket]; }

  /// Gradients by buffer; undefined if frozen.
  const std::vector<at::Tensor>& grads_by_buffer() const { return grads_by_buffer_; }
  /// True if all gradients are float32 on the CPU.
  bool are_cpu_floats() const;
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
  const ParamTable& params_;
  const SyncOptions options_;
  const int rank_, world_size_;
  const std::vector<int64_t> row_E_by_param_;
  std::vector<int64_t> shard_unit_E_by_param_;  ///< rows, joined to Param::block_E
  ReductionKind kind_ = ReductionKind::kAllReduce;
  bool has_any_ = false;
  std::vector<at::Tensor> grads_by_buffer_;
  std::vector<Bucket> buckets_;
  std::vector<BucketShards> shards_;  ///< by bucket; empty unless is_sharded()
};

/// Returns the part of a buffer that belongs to a bucket.
at::Tensor part_of(const at::Tensor& flat_E, const Bucket& bucket);

}  // namespace lockstep::dist
