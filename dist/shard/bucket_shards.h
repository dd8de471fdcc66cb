#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/tensors/params.h"
#include "dist/bucket/buckets.h"

namespace lockstep::dist {

/// A bucket divided among N ranks: rank r owns elements [begin(r), begin(r) + size(r)), counted
/// from the bucket's first. Some ranks may own none.
///
/// Pieces travel in messages of N equal slots, K = largest() items each. Slot r holds the window of
/// K elements of the bucket which has piece r in it, so that a slot can come from the bucket and go
/// back to it as it is; what a window has beside its piece belongs to others and does not count.
class BucketShards {
 public:
  /// borders_E: N + 1 of them, ascending, from 0 to the bucket's number of elements.
  explicit BucketShards(std::vector<int64_t> borders_E);

  int num_pieces() const { return static_cast<int>(borders_E_.size()) - 1; }
  int64_t num_elements() const { return borders_E_.back(); }
  int64_t begin(int piece) const { return borders_E_[static_cast<size_t>(piece)]; }
  int64_t size(int piece) const { return begin(piece + 1) - begin(piece); }
  int64_t largest() const { return largest_; }
  int64_t window_begin(int piece) const {
    return std::min(begin(piece), num_elements() - largest_);
  }
  /// All of one size: the bucket itself is the message.
  bool are_equal() const { return largest_ * num_pieces() == num_elements(); }

 private:
  std::vector<int64_t> borders_E_;
  int64_t largest_ = 0;
};

/// Divides a bucket of `buffer` into num_pieces near-equal pieces: each border is where an even
/// division would have it, moved to the nearest row border of the parameter there. A piece differs
/// from an even one by at most one row, the half of one at either end. Only a row longer than an
/// even piece is cut inside, at multiples of kCutElements from its first element; so no piece is
/// longer than two even ones (and kCutElements). Where a buffer has no slices, a row is an element.
///
/// row_E_by_param: row_elements(). Pure arithmetic on values that are equal on all ranks.
BucketShards cut_into_pieces(const Bucket& bucket, const FlatBuffer& buffer,
                             const std::vector<int64_t>& row_E_by_param, int num_pieces);

}  // namespace lockstep::dist
