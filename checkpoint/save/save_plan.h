#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/save/stored_tensors.h"

namespace lockstep::checkpoint {

/// What one rank writes of a piece: some of its stored elements, all of a text.
struct ShardItem {
  size_t piece = 0;  ///< place in the list of pieces
  ElementRange range;

  friend bool operator==(const ShardItem&, const ShardItem&) = default;
};

/// Which part of a save each rank writes. The bytes of all pieces that every rank holds, in list
/// order, are cut into W runs of equal length, one for each of W ranks. A cut moves to the nearest
/// row of its tensor, and to the tensor's nearer end if the tensor is smaller than min_cut_bytes or
/// of a type that TensorFlow does not read in slices. So at most W - 1 tensors are cut. Of pieces
/// that are divided over the ranks each rank writes what it holds.
///
/// Arithmetic on names, types and shapes alone: every rank finds the same plan without a message.
class SavePlan {
 public:
  static constexpr int64_t kMinCutBytes = int64_t{1} << 20;

  /// Throws Error(kConfig).everywhere() for more ranks than a shard's name has digits for.
  SavePlan(const std::vector<StoredTensor>& pieces, int world_size,
           int64_t min_cut_bytes = kMinCutBytes);

  /// In list order. Of divided pieces those that this process holds: so the rank is its own.
  std::vector<ShardItem> parts_of(int rank) const;

 private:
  /// First element of a piece that ranks from this one on write.
  int64_t border(size_t piece, int rank) const;

  const std::vector<StoredTensor>& pieces_;
  int world_size_;
  int64_t min_cut_bytes_;
  std::vector<int64_t> begins_;  // by piece: bytes of the pieces before it that every rank holds
  int64_t total_bytes_ = 0;
};

}  // namespace lockstep::checkpoint
