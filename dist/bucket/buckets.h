#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/tensors/params.h"

namespace lockstep::dist {

/// Largest size of a step's first bucket. Until it leaves, the network is idle. It still contains a
/// whole parameter if that fits in a bucket, and whole rows if buckets are sharded.
inline constexpr int64_t kFirstBucketBytes = 1 << 20;

inline constexpr int64_t kUnlimitedBytes = std::numeric_limits<int64_t>::max();

/// Elements of one flat buffer whose gradients travel in one message.
struct Bucket {
  size_t buffer = 0;  ///< index in the list of buffers
  int64_t begin_E = 0;
  int64_t end_E = 0;
  std::vector<int64_t> params;  ///< parameters with gradients in it, whole or in part, in memory
                                ///< order

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
/// The step's first bucket is smaller. Elements of a buffer without slices belong to no parameter
/// and come last. Each element is in exactly one bucket.
///
/// A pure function of values that are equal on all ranks, so the buckets are equal too.
std::vector<Bucket> cut_into_buckets(const std::vector<FlatBuffer>& buffers, int64_t bucket_bytes);

/// Cuts buckets that will be sharded among num_pieces ranks. A parameter larger than a bucket is
/// cut between rows, if possible after a multiple of num_pieces rows, so that pieces can be equal.
/// It is cut inside a row (dist/bucket/shard_alignment.h) only if the row is larger than a bucket.
/// A bucket may exceed bucket_bytes by these rows, or by kCutElements.
std::vector<Bucket> cut_into_buckets(const std::vector<FlatBuffer>& buffers, int64_t bucket_bytes,
                                     const std::vector<int64_t>& row_E_by_param, int num_pieces);

/// Returns the number of buckets before those that backward completes last. These are the pieces of
/// one parameter, or one bucket.
size_t num_before_last_to_come(const std::vector<Bucket>& buckets);

}  // namespace lockstep::dist
