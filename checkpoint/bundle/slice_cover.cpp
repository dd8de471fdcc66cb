// Checks that slices cover their tensor. Equal volume and no overlap together mean: each element
// once.
#include "checkpoint/bundle/slice_cover.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <stdexcept>

#include <fmt/format.h>

#include "checkpoint/bundle/tensor_runs.h"

namespace lockstep::checkpoint {
namespace {

using Boxes = std::vector<const TensorBox*>;

[[noreturn]] void refuse_overlap(const TensorBox& a, const TensorBox& b) {
  throw std::runtime_error(fmt::format("slices {} and {} overlap", box_text(a), box_text(b)));
}

/// Checks the sum of elements. For boxes that do not overlap, an equal sum means that nothing is
/// left out.
void require_volume(const Boxes& boxes, const std::vector<int64_t>& shape) {
  const int64_t wanted = TensorBox{shape, shape}.num_elements();
  int64_t sum = 0;
  for (const TensorBox* box : boxes) {
    const int64_t num_elements = box->num_elements();
    if (num_elements == 0)
      throw std::runtime_error(fmt::format("slice {} has no elements", box_text(*box)));
    if (__builtin_add_overflow(sum, num_elements, &sum) || sum > wanted)
      throw std::runtime_error(
          fmt::format("slices have more elements than the tensor, which has {}", wanted));
  }
  if (sum != wanted)
    throw std::runtime_error(fmt::format("slices have {} of {} elements", sum, wanted));
}

/// Checks boxes that are contiguous runs. After sorting, they overlap only if two neighbours
/// overlap.
void require_runs_apart(Boxes* boxes, const std::vector<int64_t>& shape) {
  const auto first = [&](const TensorBox* box) { return tensor_element(*box, shape, 0); };
  std::sort(boxes->begin(), boxes->end(),
            [&](const TensorBox* a, const TensorBox* b) { return first(a) < first(b); });
  for (size_t i = 1; i < boxes->size(); ++i)
    if (first((*boxes)[i - 1]) + (*boxes)[i - 1]->num_elements() > first((*boxes)[i]))
      refuse_overlap(*(*boxes)[i - 1], *(*boxes)[i]);
}

/// Returns the dimension with the most distinct starts. Sweeping along it compares the fewest
/// pairs.
size_t most_cut_dim(const Boxes& boxes, size_t num_dims) {
  size_t best = 0, most = 0;
  for (size_t d = 0; d < num_dims; ++d) {
    std::set<int64_t> starts;
    for (const TensorBox* box : boxes) starts.insert(box->start[d]);
    if (starts.size() > most) best = d;
    most = std::max(most, starts.size());
  }
  return best;
}

/// True if the boxes share an element.
bool overlap(const TensorBox& a, const TensorBox& b) {
  for (size_t d = 0; d < a.start.size(); ++d)
    if (a.start[d] >= b.start[d] + b.length[d] || b.start[d] >= a.start[d] + a.length[d])
      return false;
  return true;
}

/// Checks any boxes. Sweeps along one dimension and compares the boxes that intersect in it.
void require_apart(Boxes* boxes, size_t num_dims) {
  // A hostile index could otherwise make this quadratic in the number of slices.
  constexpr int64_t kMaxComparisons = int64_t{1} << 22;
  const size_t dim = most_cut_dim(*boxes, num_dims);
  std::sort(boxes->begin(), boxes->end(),
            [&](const TensorBox* a, const TensorBox* b) { return a->start[dim] < b->start[dim]; });
  int64_t num_comparisons = 0;
  for (size_t i = 0; i < boxes->size(); ++i) {
    const TensorBox& box = *(*boxes)[i];
    const int64_t end = box.start[dim] + box.length[dim];
    for (size_t k = i + 1; k < boxes->size() && (*boxes)[k]->start[dim] < end; ++k) {
      if (++num_comparisons > kMaxComparisons)
        throw std::runtime_error(
            fmt::format("{} slices in more dimensions than can be checked", boxes->size()));
      if (overlap(box, *(*boxes)[k])) refuse_overlap(box, *(*boxes)[k]);
    }
  }
}

}  // namespace

void require_cover(const std::vector<TensorBox>& boxes, const std::vector<int64_t>& shape) {
  Boxes list;
  for (const TensorBox& box : boxes) list.push_back(&box);
  require_volume(list, shape);
  // Our own slices are runs; boxes of other kinds come from TensorFlow's partitioned variables.
  const bool all_runs = std::all_of(boxes.begin(), boxes.end(), [&](const TensorBox& box) {
    return run_elements(box, shape) == box.num_elements();
  });
  if (all_runs)
    require_runs_apart(&list, shape);
  else
    require_apart(&list, shape.size());
}

}  // namespace lockstep::checkpoint
