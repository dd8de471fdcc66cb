#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/bundle/tensor_box.h"

namespace lockstep::checkpoint {

/// Throws std::runtime_error with the reason unless the boxes make up the whole tensor, each
/// element once; a box without elements is refused. Boxes must lie inside the shape, whose
/// elements' number fits 63 bits. Takes n log n steps for n boxes that are runs of the tensor or
/// that cut it along one dimension; others are refused beyond a number of steps that no sound save
/// needs.
void require_cover(const std::vector<TensorBox>& boxes, const std::vector<int64_t>& shape);

}  // namespace lockstep::checkpoint
