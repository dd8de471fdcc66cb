#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/exact_numbers.h"
#include "base/tensors/param_info.h"
#include "base/tensors/params.h"

namespace lockstep {

/// Returns for each parameter the elements of one row, at least 1. Rows are counted by the first
/// dimension.
std::vector<int64_t> row_elements(const ParamTable& params);

/// Returns the elements of as many whole rows as fit into `most_E`, at least those of one row.
inline int64_t whole_rows(int64_t row_E, int64_t most_E) {
  return std::max<int64_t>(1, most_E / row_E) * row_E;
}

/// Length in elements at whose multiples a longer row is cut.
inline constexpr int64_t kCutElements = 1024;

/// Adds the squares of values_E inside the region, in float64. The bits do not depend on how the
/// elements are divided among ranks or buckets. CPU only.
///
/// The unit is a row of a parameter, or kCutElements of a longer row. Its sum is computed in one
/// fixed order by 16 parallel accumulators; sums of units are joined exactly. The region begins and
/// ends between units of the buffer's slices. row_E_by_param: row_elements(); empty: the unit is
/// kCutElements of the buffer. One pass.
void add_squares(const at::Tensor& values_E, const FlatBuffer& buffer, const ParamShard& region,
                 const std::vector<int64_t>& row_E_by_param, Superaccumulator* sum);
/// Does this for one slice's part of the region.
void add_squares(const at::Tensor& values_E, const FlatSlice& slice, int64_t row_E,
                 const ParamShard& region, Superaccumulator* sum);

}  // namespace lockstep
