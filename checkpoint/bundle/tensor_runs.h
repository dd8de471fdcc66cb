#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/tensors/state_list.h"
#include "checkpoint/bundle/tensor_box.h"

/// Which elements of a tensor are the elements of a box of it. Both are counted in row-major order.
namespace lockstep::checkpoint {

/// How many elements of the box at a time lie together in the tensor. The box has elements.
int64_t run_elements(const TensorBox& box, const std::vector<int64_t>& shape);

/// Where element `box_E` of the box lies in the tensor.
int64_t tensor_element(const TensorBox& box, const std::vector<int64_t>& shape, int64_t box_E);

/// Calls use(box_E, tensor_E, num_elements) for each run of the box's elements [begin_E, end_E)
/// that lies together in the tensor, in order.
template <typename Use>
void for_each_run(const TensorBox& box, const std::vector<int64_t>& shape, int64_t begin_E,
                  int64_t end_E, Use use) {
  if (begin_E >= end_E) return;
  const int64_t run_E = run_elements(box, shape);
  for (int64_t at_E = begin_E; at_E < end_E;) {
    const int64_t count = std::min(end_E, at_E / run_E * run_E + run_E) - at_E;
    use(at_E, tensor_element(box, shape, at_E), count);
    at_E += count;
  }
}

/// Calls use(begin_E, end_E) for what `ranges` (ascending, apart) have in common with
/// [begin_E, end_E).
template <typename Use>
void for_each_common(const std::vector<ElementRange>& ranges, int64_t begin_E, int64_t end_E,
                     Use use) {
  auto range = std::partition_point(ranges.begin(), ranges.end(),
                                    [&](const ElementRange& one) { return one.end_E <= begin_E; });
  for (; range != ranges.end() && range->begin_E < end_E; ++range) {
    const int64_t from_E = std::max(range->begin_E, begin_E), to_E = std::min(range->end_E, end_E);
    if (from_E < to_E) use(from_E, to_E);
  }
}

/// Throws Error(kBug) unless the ranges ascend, are apart and lie inside the tensor.
void check_ranges(const std::vector<ElementRange>& ranges, int64_t num_elements);

}  // namespace lockstep::checkpoint
