#pragma once

#include <cstdint>
#include <vector>

#include "base/tensors/params.h"

namespace lockstep::dist {

/// Rows are what a parameter's first dimension counts. By parameter of the table: the elements of
/// one row, at least 1.
std::vector<int64_t> row_elements(const ParamTable& params);

/// Where a row that is too long is cut: multiples of this from its first element.
inline constexpr int64_t kCutElements = 1024;

/// Places where the elements of one parameter may be parted, counted from its first element. All
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
