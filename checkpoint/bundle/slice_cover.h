#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/bundle/tensor_box.h"

namespace lockstep::checkpoint {

/// Throws std::runtime_error with the reason unless the boxes cover the tensor, each element
/// exactly once. A box without elements is refused. Boxes must be inside the shape, whose number of
/// elements fits 63 bits. Time is O(n log n) for n boxes that are runs of elements, or that all cut
/// one dimension. Other sets are refused above a number of steps that no valid checkpoint needs.
void require_cover(const std::vector<TensorBox>& boxes, const std::vector<int64_t>& shape);

}  // namespace lockstep::checkpoint
