#pragma once

#include <cstdint>

#include <c10/util/ArrayRef.h>

namespace lockstep::recal {

/// Shape of a weight as masks see it, row-major: O outputs, I inputs, R kernel positions (1 for a
/// linear layer). Weight (o, i, r) is element (o * I + i) * R + r.
struct WeightShape {
  int64_t num_outputs = 1;
  int64_t num_inputs = 1;
  int64_t num_positions = 1;

  explicit WeightShape(c10::IntArrayRef sizes) {
    if (!sizes.empty()) num_outputs = sizes[0];
    if (sizes.size() > 1) num_inputs = sizes[1];
    for (size_t i = 2; i < sizes.size(); ++i) num_positions *= sizes[i];
  }
};

}  // namespace lockstep::recal
