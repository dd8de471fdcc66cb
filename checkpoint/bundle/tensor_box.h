#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/tensors/state_list.h"

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

}  // namespace lockstep::checkpoint
