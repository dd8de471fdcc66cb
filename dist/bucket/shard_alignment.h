#pragma once

#include <cstdint>

#include "base/tensors/square_sums.h"

namespace lockstep::dist {

/// Where one parameter may be divided among ranks: between rows, and inside of a row at multiples
/// of kCutElements (base/tensors/square_sums.h). Places are counted from its first element; at_E is
/// 0 to num_elements, and every function grows with it.
struct RowBorders {
  int64_t num_elements = 0;
  int64_t row_E = 1;

  /// The nearest multiple of num_rows rows, or the parameter's end.
  int64_t nearest(int64_t at_E, int64_t num_rows = 1) const;
  /// The nearest row border, or place inside of a row where it may be cut.
  int64_t nearest_cut(int64_t at_E) const;
};

}  // namespace lockstep::dist
