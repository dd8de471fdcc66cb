#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/tensors/params.h"

namespace lockstep::dist {

/// The first bucket of a step is no larger than this, so that it leaves early: until it does, the
/// wire rests. But it holds a whole parameter where that fits in a bucket, and whole rows where
/// buckets are divided.
inline constexpr int64_t kFirstBucketBytes = 1 << 20;

inline constexpr int64_t kUnlimitedBytes = std::numeric_limits<int64_t>::max();

/// Elements of one flat buffer whose gradients travel in one message.
struct Bucket {
  size_t buffer = 0;  ///< index in the list of buffers
  int64_t begin_E = 0;
  int64_t end_E = 0;
  std::vector<int64_t> params;  ///< whose gradients lie in it, whole or in part, in memory order

  int64_t num_elements() const { return end_E - begin_E; }
};

/// Cuts the buffers that are not frozen into buckets of at most bucket_bytes (> 0, but an element
/// at least; kUnlimitedBytes: each buffer is one bucket), in the order in which backward completes
/// them.
///
/// Backward makes gradients from the last parameter of the model to the first, and a bucket is
/// complete with the one of its parameters that stands first in the model; so buckets stand with
/// the latest such parameter first. A bucket holds whole parameters as long as the next one fits.
/// A parameter larger than a bucket is cut into near-equal pieces, each a bucket of its own; the
/// step's first bucket is a smaller one. Where
/// a buffer has no slices, its elements belong to no parameter and come last. Together the buckets
/// hold each element once.
///
/// Pure arithmetic on values that are equal on all ranks, so the buckets are too.
std::vector<Bucket> cut_into_buckets(const std::vector<FlatBuffer>& buffers, int64_t bucket_bytes);

/// The same for buckets that will be divided among num_pieces ranks: a parameter larger than a
/// bucket is parted between rows, and where possible after a multiple of num_pieces rows, so that
/// pieces can be equal; inside of a row (dist/bucket/shard_alignment.h) only if that is larger than
/// a bucket. A bucket may so exceed bucket_bytes by these rows, or kCutElements.
std::vector<Bucket> cut_into_buckets(const std::vector<FlatBuffer>& buffers, int64_t bucket_bytes,
                                     const std::vector<int64_t>& row_E_by_param, int num_pieces);

/// How many buckets stand before those that backward completes last: the pieces of one parameter,
/// or one bucket.
size_t num_before_last_to_come(const std::vector<Bucket>& buckets);

}  // namespace lockstep::dist
