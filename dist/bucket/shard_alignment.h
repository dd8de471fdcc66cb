#pragma once

#include <cstdint>

#include "base/tensors/square_sums.h"

namespace lockstep::dist {

/// Positions where one parameter may be divided among ranks: between rows, and inside a row at
/// multiples of kCutElements (base/tensors/square_sums.h). Positions count from the parameter's
/// first element. at_E is 0 to num_elements; every function is monotonic in it.
struct RowBorders {
  int64_t num_elements = 0;
  int64_t row_E = 1;

  /// Returns the nearest multiple of num_rows rows, or the parameter's end.
  int64_t nearest(int64_t at_E, int64_t num_rows = 1) const;
  /// Returns the nearest row border, or the nearest cut inside the row.
  int64_t nearest_cut(int64_t at_E) const;
};

}  // namespace lockstep::dist
