#include "optim/lamb.h"

#include <algorithm>
#include <cmath>

#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>

#include "base/tensors/square_sums.h"

namespace lockstep::optim {
namespace {

constexpr auto kCounters = static_cast<int64_t>(Superaccumulator::kNumCounters);

/// Calls act(slice, region) for each slice of the buffer that lies in a part, and the common
/// region.
template <typename Act>
void for_each_slice(const FlatBuffer& buffer, const std::vector<SlotPart>& parts, const Act& act) {
  for (const SlotPart& part : parts)
    for (const FlatSlice& slice : buffer.slices) {
      const ParamShard common{part.region.buffer, std::max(part.region.begin_E, slice.offset_E),
                              std::min(part.region.end_E, slice.offset_E + slice.num_elements)};
      if (common.num_elements() > 0) act(slice, common);
    }
}

void add_squares_anywhere(const at::Tensor& values_E, const FlatSlice& slice, int64_t row_E,
                          const ParamShard& region, Superaccumulator* sum) {
  if (values_E.is_cpu()) return add_squares(values_E, slice, row_E, region, sum);
  const at::Tensor part_E = values_E.narrow(0, region.begin_E, region.num_elements());
  const auto norm =
      at::linalg_vector_norm(part_E, 2, c10::nullopt, false, at::kDouble).item<double>();
  sum->add(norm * norm);
}

}  // namespace

Lamb::Lamb(const OptimizerOptions& options, std::vector<FlatBuffer>& buffers,
           const ParamTable& params)
    : Elementwise(options, buffers, params), row_E_by_param_(row_elements(params)) {}

double Lamb::Squares::trust_ratio() const {
  constexpr double kLeast = 1e-30 * 1e-30;  // of |r|²
  const double value = values.value(), direction = directions.value();
  return value > 0 && direction >= kLeast ? std::sqrt(value / direction) : 1;
}

void Lamb::end_step(const StepRates& rates) {
  std::vector<Squares> squares = squares_by_param();
  if (is_divided()) join(&squares);
  for (size_t b = 0; b < buffers().size(); ++b) {
    const FlatBuffer& buffer = buffers()[b];
    if (buffer.frozen) continue;
    const double rate = rates[static_cast<size_t>(buffer.group)].learning_rate;
    for_each_slice(buffer, parts(b), [&](const FlatSlice& slice, const ParamShard& region) {
      const rules::Sgd<double> step(rate * squares[static_cast<size_t>(slice.param)].trust_ratio());
      if (takes_kernels(buffer))
        return update_region(PackedMask(), data_of(buffer, region), {}, {},
                             rules::Sgd<float>(-step.minus_rate));
      const auto part = [&](const at::Tensor& flat_E) {
        return flat_E.narrow(0, region.begin_E, region.num_elements());
      };
      part(buffer.values_E).copy_(step(part(buffer.values_E), part(buffer.grads_E)));
    });
  }
}

std::vector<Lamb::Squares> Lamb::squares_by_param() {
  std::vector<Squares> squares(params().size());
  for (size_t b = 0; b < buffers().size(); ++b) {
    const FlatBuffer& buffer = buffers()[b];
    if (buffer.frozen) continue;
    for_each_slice(buffer, parts(b), [&](const FlatSlice& slice, const ParamShard& region) {
      const auto param = static_cast<size_t>(slice.param);
      const auto add = [&](const at::Tensor& flat_E, Superaccumulator* sum) {
        add_squares_anywhere(flat_E, slice, row_E_by_param_[param], region, sum);
      };
      add(buffer.values_E, &squares[param].values);
      add(buffer.grads_E, &squares[param].directions);
    });
  }
  return squares;
}

void Lamb::join(std::vector<Squares>* squares) const {
  const at::Tensor counters_PSC =
      at::empty({static_cast<int64_t>(squares->size()), 2, kCounters}, at::kLong);
  const auto each_sum = [&](const auto& act) {
    int64_t* place = counters_PSC.mutable_data_ptr<int64_t>();
    for (Squares& one : *squares)
      for (Superaccumulator* sum : {&one.values, &one.directions}) {
        act(sum->counters().data(), place);
        place += kCounters;
      }
  };
  each_sum([](int64_t* counters, int64_t* place) { std::copy_n(counters, kCounters, place); });
  sum_over_ranks(counters_PSC);
  each_sum([](int64_t* counters, int64_t* place) { std::copy_n(place, kCounters, counters); });
}

}  // namespace lockstep::optim
