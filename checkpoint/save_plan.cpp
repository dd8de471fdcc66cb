#include "checkpoint/save_plan.h"

#include <algorithm>

#include "checkpoint/tensor_type.h"

namespace lockstep::checkpoint {
namespace {

/// Rows longer than this are cut inside.
constexpr int64_t kMaxRowBytes = int64_t{1} << 20;
constexpr int64_t kCutBytes = 4096;

/// Between which elements a tensor may be cut: multiples of this.
int64_t cut_elements(const SavePiece& piece) {
  const int64_t num_elements = piece.num_elements();
  if (piece.shape.empty() || piece.shape[0] == 0) return std::max<int64_t>(num_elements, 1);
  const int64_t row_E = std::max<int64_t>(num_elements / piece.shape[0], 1);
  if (row_E * piece.element_bytes > kMaxRowBytes) return kCutBytes / piece.element_bytes;
  return row_E;
}

/// The element at which a tensor is cut so that about `bytes` of it come before.
int64_t cut_at(const SavePiece& piece, int64_t bytes, int64_t min_cut_bytes) {
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

SavePlan::SavePlan(const std::vector<SavePiece>& pieces, int world_size, int64_t min_cut_bytes)
    : pieces_(pieces) {
  int64_t total = 0;
  for (const SavePiece& piece : pieces)
    if (!piece.is_divided()) total += piece.num_bytes();
  int64_t begin = 0;
  for (const SavePiece& piece : pieces) {
    std::vector<int64_t>& borders = borders_.emplace_back();
    if (piece.is_divided()) continue;
    for (int64_t rank = 0; rank <= world_size; ++rank) {
      // total * rank / world_size without overflow
      const int64_t cut = total / world_size * rank + total % world_size * rank / world_size;
      borders.push_back(cut_at(piece, cut - begin, min_cut_bytes));
    }
    borders.front() = 0;
    borders.back() = piece.num_elements();
    begin += piece.num_bytes();
  }
}

std::vector<SavePart> SavePlan::parts_of(int rank) const {
  std::vector<SavePart> parts;
  const auto r = static_cast<size_t>(rank);
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const std::vector<int64_t>& borders = borders_[i];
    if (pieces_[i].num_elements() == 0) {
      if (rank == 0) parts.push_back({i, {0, 0}});
    } else if (pieces_[i].is_divided()) {
      for (const ElementRange& range : *pieces_[i].held) parts.push_back({i, range});
    } else if (borders[r] < borders[r + 1]) {
      parts.push_back({i, {borders[r], borders[r + 1]}});
    }
  }
  return parts;
}

}  // namespace lockstep::checkpoint
