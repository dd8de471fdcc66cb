// Gradient norms are computed with these sums, so their bits must not depend on the number of
// ranks.
#include "base/tensors/square_sums.h"

#include <algorithm>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "base/error.h"
#include "base/simd/square_sum.h"

namespace lockstep {
namespace {

/// Sums squares in the order of SquareAccumulators. Squares of float16 and bfloat16 are exact too.
/// Those of float64 are rounded separately, on every machine without fused operations.
template <typename T>
double squares_of(const T* items, int64_t num_items) {
  SquareAccumulators sums{};
  const auto add = [&](const T* from, int64_t num) {
    for (int64_t i = 0; i < num; ++i) {
      const auto item = static_cast<double>(from[i]);
      sums[static_cast<size_t>(i)] += item * item;
    }
  };
  int64_t begin = 0;
  for (; begin + kSquareAccumulators <= num_items; begin += kSquareAccumulators)
    add(items + begin, kSquareAccumulators);  // constant length: vectorized
  add(items + begin, num_items - begin);
  return sum_of(sums);
}

double squares_of(const at::Tensor& values_E, int64_t begin_E, int64_t end_E) {
  const int64_t num_items = end_E - begin_E;
  switch (values_E.scalar_type()) {
    case at::kFloat:
      return square_sum(values_E.const_data_ptr<float>() + begin_E, num_items);
    case at::kDouble:
      return squares_of(values_E.const_data_ptr<double>() + begin_E, num_items);
    case at::kBFloat16:
      return squares_of(values_E.const_data_ptr<c10::BFloat16>() + begin_E, num_items);
    case at::kHalf:
      return squares_of(values_E.const_data_ptr<c10::Half>() + begin_E, num_items);
    default:
      check(false, "gradients are floats");
      return 0;
  }
}

/// Calls act(begin_E, end_E) for each unit of the slice inside the region.
template <typename Act>
void for_each_unit(const FlatSlice& slice, int64_t row_E, const ParamShard& region,
                   const Act& act) {
  const int64_t slice_end_E = std::min(region.end_E, slice.offset_E + slice.num_elements);
  int64_t at_E = std::max(region.begin_E, slice.offset_E);
  // A unit ends with its row, at a cut of a long row, or with the region.
  while (at_E < slice_end_E) {
    const int64_t in_row_E = (at_E - slice.offset_E) % row_E;
    const int64_t rest_E = std::min(row_E - in_row_E, kCutElements - in_row_E % kCutElements);
    const int64_t next_E = std::min(at_E + rest_E, slice_end_E);
    act(at_E, next_E);
    at_E = next_E;
  }
}

}  // namespace

std::vector<int64_t> row_elements(const ParamTable& params) {
  std::vector<int64_t> rows;
  for (const Param& param : params) {
    const int64_t num_rows = param.tensor.dim() == 0 ? 1 : param.tensor.size(0);
    rows.push_back(std::max<int64_t>(1, param.tensor.numel() / std::max<int64_t>(1, num_rows)));
  }
  return rows;
}

void add_squares(const at::Tensor& values_E, const FlatSlice& slice, int64_t row_E,
                 const ParamShard& region, Superaccumulator* sum) {
  for_each_unit(slice, row_E, region, [&](int64_t begin_E, int64_t end_E) {
    sum->add(squares_of(values_E, begin_E, end_E));
  });
}

void add_squares(const at::Tensor& values_E, const FlatBuffer& buffer, const ParamShard& region,
                 const std::vector<int64_t>& row_E_by_param, Superaccumulator* sum) {
  if (region.begin_E >= region.end_E) return;
  if (buffer.slices.empty() || row_E_by_param.empty())
    return add_squares(values_E, {.num_elements = values_E.numel()}, values_E.numel(), region, sum);
  for (const FlatSlice& slice : buffer.slices)
    add_squares(values_E, slice, row_E_by_param.at(static_cast<size_t>(slice.param)), region, sum);
}

}  // namespace lockstep
