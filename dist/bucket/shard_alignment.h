#pragma once

#include <cstdint>

#include "base/tensors/square_sums.h"

namespace lockstep::dist {

/// Places where the elements of one parameter may be parted, between rows or at kCutElements of one
/// (base/tensors/square_sums.h), counted from its first element. All
/// functions are monotonic in at_E, which lies in [0, num_elements].
struct RowBorders {
  int64_t num_elements = 0;
  int64_t row_E = 1;

  /// The nearest multiple of num_rows rows, or the parameter's end.
  int64_t nearest(int64_t at_E, int64_t num_rows = 1) const;
  /// The nearest row border, or place inside of a row where it may be cut.
  int64_t nearest_cut(int64_t at_E) const;
};

}  // namespace lockstep::dist
