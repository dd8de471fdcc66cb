// The cuts are computed on one line of bytes: begins_[i] is where piece i starts on it.
#include "checkpoint/save/save_plan.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "checkpoint/bundle/tensor_type.h"

namespace lockstep::checkpoint {
namespace {

/// Row length in bytes above which rows are cut inside.
constexpr int64_t kMaxRowBytes = int64_t{1} << 20;
// Cuts inside a row fall on multiples of the alignment of direct I/O.
constexpr int64_t kCutBytes = 4096;
constexpr int kMostRanks = 99'999;

/// Returns the granularity of cuts in elements.
int64_t cut_elements(const StoredTensor& piece) {
  const int64_t num_elements = piece.num_elements();
  if (piece.shape.empty() || piece.shape[0] == 0) return std::max<int64_t>(num_elements, 1);
  const int64_t row_E = std::max<int64_t>(num_elements / piece.shape[0], 1);
  if (row_E * piece.element_bytes > kMaxRowBytes) return kCutBytes / piece.element_bytes;
  return row_E;
}

/// Returns the element at which a tensor is cut, so that about `bytes` bytes come before it.
int64_t cut_at(const StoredTensor& piece, int64_t bytes, int64_t min_cut_bytes) {
  const int64_t num_elements = piece.num_elements(), num_bytes = piece.num_bytes();
  if (bytes <= 0) return 0;
  if (bytes >= num_bytes) return num_elements;
  if (num_bytes < min_cut_bytes || !can_be_sliced(piece.dtype))
    return bytes * 2 < num_bytes ? 0 : num_elements;
  const int64_t step_E = cut_elements(piece);
  const int64_t steps = (bytes / piece.element_bytes + step_E / 2) / step_E;
  return std::min(steps * step_E, num_elements);
}

}  // namespace

SavePlan::SavePlan(const std::vector<StoredTensor>& pieces, int world_size, int64_t min_cut_bytes)
    : pieces_(pieces), world_size_(world_size), min_cut_bytes_(min_cut_bytes) {
  if (world_size > kMostRanks)
    throw Error(ExitCode::kConfig, "checkpoint",
                fmt::format("a save is written by at most {} ranks, for its files' names have five "
                            "digits, and there are {}; set checkpoint: off, or start fewer",
                            kMostRanks, world_size))
        .everywhere();
  for (const StoredTensor& piece : pieces) {
    begins_.push_back(total_bytes_);
    if (!piece.is_divided()) total_bytes_ += piece.num_bytes();
  }
}

int64_t SavePlan::border(size_t piece, int rank) const {
  if (rank == 0) return 0;
  if (rank == world_size_) return pieces_[piece].num_elements();
  // total * rank / world_size without overflow
  const int64_t cut =
      total_bytes_ / world_size_ * rank + total_bytes_ % world_size_ * rank / world_size_;
  return cut_at(pieces_[piece], cut - begins_[piece], min_cut_bytes_);
}

std::vector<ShardItem> SavePlan::parts_of(int rank) const {
  std::vector<ShardItem> parts;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    // Somebody must write the entry of a tensor without elements.
    if (pieces_[i].num_elements() == 0) {
      if (rank == 0) parts.push_back({i, {0, 0}});
    } else if (pieces_[i].is_divided()) {
      for (const ElementRange& range : *pieces_[i].held) parts.push_back({i, range});
    } else if (const ElementRange range{border(i, rank), border(i, rank + 1)};
               range.begin_E < range.end_E) {
      parts.push_back({i, range});
    }
  }
  return parts;
}

}  // namespace lockstep::checkpoint
