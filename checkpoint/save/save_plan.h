#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/save/stored_tensors.h"

namespace lockstep::checkpoint {

/// Part of a piece that one rank writes: some of its stored elements, or all of a text.
struct ShardItem {
  size_t piece = 0;  ///< index in the list of pieces
  ElementRange range;

  friend bool operator==(const ShardItem&, const ShardItem&) = default;
};

/// Plan of a save: which part each rank writes. The bytes of all replicated pieces, in list order,
/// are cut into W runs of equal length for W ranks. A cut moves to the nearest row of its tensor.
/// Two kinds of tensors are not cut: those smaller than min_cut_bytes, and types that TensorFlow
/// does not read in slices. There the cut moves to the nearer end of the tensor. So at most W - 1
/// tensors are cut. Of divided pieces each rank writes what it holds.
///
/// The plan depends only on names, types and shapes, so every rank computes the same one without
/// communication.
class SavePlan {
 public:
  static constexpr int64_t kMinCutBytes = int64_t{1} << 20;

  /// Throws Error(kConfig).everywhere() for more ranks than a shard's name has digits for.
  SavePlan(const std::vector<StoredTensor>& pieces, int world_size,
           int64_t min_cut_bytes = kMinCutBytes);

  /// Returns the parts in list order. Divided pieces list what this process holds, so `rank` must
  /// be its own.
  std::vector<ShardItem> parts_of(int rank) const;

 private:
  /// Returns the first element of a piece that is written by this rank or a later one.
  int64_t border(size_t piece, int rank) const;

  const std::vector<StoredTensor>& pieces_;
  int world_size_;
  int64_t min_cut_bytes_;
  std::vector<int64_t> begins_;  // by piece: bytes of the replicated pieces before it
  int64_t total_bytes_ = 0;
};

}  // namespace lockstep::checkpoint
