#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/tensors/state_list.h"

namespace lockstep::checkpoint {

/// A box of a tensor: per dimension, the first index and how many. What TensorFlow calls a slice.
struct TensorBox {
  std::vector<int64_t> start, length;

  int64_t num_elements() const;
  friend bool operator==(const TensorBox&, const TensorBox&) = default;
};

/// The elements of a range as boxes of a tensor of that shape, in order. Each box is one run of the
/// row-major elements, so its bytes lie together in memory and in a file. At most 2 d - 1 boxes for
/// d dimensions, one if the range begins and ends at rows of the first dimension. Of a scalar only
/// the whole can be taken.
std::vector<TensorBox> boxes_of(const ElementRange& range, const std::vector<int64_t>& shape);

TensorBox whole_box(const std::vector<int64_t>& shape);

/// "64:128,0:32": first index and end by dimension.
std::string box_text(const TensorBox& box);

}  // namespace lockstep::checkpoint
