#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/tensors/params.h"
#include "dist/bucket/buckets.h"

namespace lockstep::dist {

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
/// row_E_by_param: row_elements(). A pure function of values that are equal on all ranks.
BucketShards cut_into_pieces(const Bucket& bucket, const FlatBuffer& buffer,
                             const std::vector<int64_t>& row_E_by_param, int num_pieces);

}  // namespace lockstep::dist
