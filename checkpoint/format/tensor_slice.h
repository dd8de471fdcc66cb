#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensors/state_list.h"

/// Slices of tensors: boxes, their elements, their keys in an index, and the check that they cover
/// a tensor.
namespace lockstep::checkpoint {

/// Box of a tensor: first index and length per dimension. TensorFlow calls it a slice.
struct TensorBox {
  std::vector<int64_t> start, length;

  int64_t num_elements() const;
  friend bool operator==(const TensorBox&, const TensorBox&) = default;
};

/// Returns the elements of a range as boxes of a tensor of this shape, in order. Each box is one
/// run of the row-major elements, so its bytes are contiguous in memory and in a file. There are at
/// most 2 d - 1 boxes for d dimensions. There is one box if the range starts and ends at rows of
/// the first dimension. A scalar can only be taken whole.
std::vector<TensorBox> boxes_of(const ElementRange& range, const std::vector<int64_t>& shape);

TensorBox whole_box(const std::vector<int64_t>& shape);

/// Returns first index and end by dimension: "64:128,0:32".
std::string box_text(const TensorBox& box);

// Mapping between the elements of a box and the elements of its tensor, both in row-major order.

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

/// Returns the key of the index entry with the place of one slice of a tensor. Its first byte is 0,
/// so it sorts before all names. `box` must have the form of with_whole_dims(), as TensorFlow
/// writes it. docs/design/checkpoint_format.md, Slices, defines the bytes.
///
/// Source: TensorFlow's "ordered code" of number 0, name, number of dimensions, and first index and
/// length of each.
std::string slice_key(std::string_view name, const TensorBox& box);

inline bool is_slice_key(std::string_view key) { return !key.empty() && key.front() == '\0'; }

/// Returns the box with length -1 for each dimension that it covers entirely: the form of keys and
/// protos.
TensorBox with_whole_dims(TensorBox box, const std::vector<int64_t>& shape);

/// Throws std::runtime_error with the reason unless the boxes cover the tensor, each element
/// exactly once. A box without elements is refused. Boxes must be inside the shape, whose number of
/// elements fits 63 bits. Time is O(n log n) for n boxes that are runs of elements, or that all cut
/// one dimension. Other sets are refused above a number of steps that no valid checkpoint needs.
void require_cover(const std::vector<TensorBox>& boxes, const std::vector<int64_t>& shape);

}  // namespace lockstep::checkpoint
