#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/param_shard.h"
#include "base/tensors/params.h"
#include "base/tensors/superaccumulator.h"

namespace lockstep {

/// Rows are what a parameter's first dimension counts. By parameter of the table: the elements of
/// one row, at least 1.
std::vector<int64_t> row_elements(const ParamTable& params);

/// Where a row that is too long is cut: multiples of this from its first element.
inline constexpr int64_t kCutElements = 1024;

/// Adds the squares of values_E within the region, in float64, the same bits however the elements
/// are divided among ranks or cut into buckets. On the CPU.
///
/// The unit is a row of a parameter, or kCutElements of a longer row: its sum is taken in one fixed
/// order, by 16 accumulators side by side; sums of units are joined exactly. The region begins and
/// ends between units of the buffer's slices. row_E_by_param: row_elements(); empty: the unit is
/// kCutElements of the buffer. One pass.
void add_squares(const at::Tensor& values_E, const FlatBuffer& buffer, const ParamShard& region,
                 const std::vector<int64_t>& row_E_by_param, Superaccumulator* sum);
/// The same of one slice's part of the region.
void add_squares(const at::Tensor& values_E, const FlatSlice& slice, int64_t row_E,
                 const ParamShard& region, Superaccumulator* sum);

}  // namespace lockstep
