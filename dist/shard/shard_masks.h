#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dist/shard/bucket_shards.h"

namespace lockstep::dist {

/// Which elements of a bucket are kept, by piece (dist/shard/bucket_shards.h). Packed, the kept
/// elements of piece r are the first ones of slot r of N, each largest() items long.
class ShardMasks {
 public:
  explicit ShardMasks(const BucketShards& pieces);

  /// Bits first_item, first_item + 1, ... of a mask (base/bits/bit_mask.h), copied.
  void set(const uint8_t* bits, int64_t first_item);
  void keep_all();

  /// True in the beginning and where the mask drops nothing.
  bool are_all() const { return bits_.empty(); }
  /// All pieces' masks, each from a byte of its own; empty if are_all().
  const std::vector<uint8_t>& all_bits() const { return bits_; }
  /// The mask of one piece; not if are_all().
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
