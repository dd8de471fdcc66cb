#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/tensors/state_list.h"
#include "checkpoint/bundle/tensor_box.h"

/// Mapping between the elements of a box and the elements of its tensor, both in row-major order.
namespace lockstep::checkpoint {

/// Returns how many consecutive elements of the box are contiguous in the tensor. The box must have
/// elements.
int64_t run_elements(const TensorBox& box, const std::vector<int64_t>& shape);

/// Returns the position in the tensor of element `box_E` of the box.
int64_t tensor_element(const TensorBox& box, const std::vector<int64_t>& shape, int64_t box_E);

/// Calls use(box_E, tensor_E, num_elements) for each contiguous run of the box's elements [begin_E,
/// end_E), in order.
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

/// Calls use(begin_E, end_E) for each intersection of `ranges` (ascending, disjoint) with [begin_E,
/// end_E).
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

/// Throws Error(kBug) unless the ranges ascend, are disjoint and are inside the tensor.
void check_ranges(const std::vector<ElementRange>& ranges, int64_t num_elements);

}  // namespace lockstep::checkpoint
