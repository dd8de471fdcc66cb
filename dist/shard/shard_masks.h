#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dist/shard/bucket_shards.h"

namespace lockstep::dist {

/// Kept elements of a bucket, by piece (dist/shard/bucket_shards.h). In packed form, the kept
/// elements of piece r are the first ones of slot r of N. Each slot has largest() items.
class ShardMasks {
 public:
  explicit ShardMasks(const BucketShards& pieces);

  /// Sets the mask: bits first_item, first_item + 1, ... of `bits` (base/bits/bit_mask.h), copied.
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

}  // namespace lockstep::dist
