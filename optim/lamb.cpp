#include "optim/lamb.h"

#include <algorithm>
#include <cmath>
#include <mutex>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>

#include "base/tensors/square_sums.h"

namespace lockstep::optim {
namespace {

constexpr auto kCounters = static_cast<int64_t>(Superaccumulator::kNumCounters);

/// A piece of a slice, of which all that an update touches stays in the second cache.
constexpr int64_t kPieceElements = 32 * kCutElements;

struct SlicePiece {
  const FlatSlice* slice;
  ParamShard region;
};

/// Calls act(slice, region) for each slice of the buffer that the region has a part of, and that
/// part.
template <typename Act>
void for_each_slice(const FlatBuffer& buffer, const ParamShard& region, const Act& act) {
  for (const FlatSlice& slice : buffer.slices) {
    const ParamShard common{region.buffer, std::max(region.begin_E, slice.offset_E),
                            std::min(region.end_E, slice.offset_E + slice.num_elements)};
    if (common.num_elements() > 0) act(slice, common);
  }
}

/// Appends a slice's part in pieces that end between the units of add_squares().
void add_pieces(const FlatSlice& slice, const ParamShard& part, int64_t row_E,
                std::vector<SlicePiece>* pieces) {
  const int64_t piece_E = row_E >= kPieceElements ? kPieceElements : kPieceElements / row_E * row_E;
  for (int64_t begin_E = part.begin_E; begin_E < part.end_E;) {
    const int64_t in_slice_E = begin_E - slice.offset_E, in_row_E = in_slice_E % row_E;
    const int64_t rest_E = row_E >= kPieceElements
                               ? std::min(row_E - in_row_E, piece_E - in_row_E % piece_E)
                               : piece_E - in_slice_E % piece_E;
    const int64_t end_E = std::min(begin_E + rest_E, part.end_E);
    pieces->push_back({&slice, {part.buffer, begin_E, end_E}});
    begin_E = end_E;
  }
}

/// Rounded region by region: for devices.
void add_rounded_squares(const at::Tensor& values_E, const ParamShard& region,
                         Superaccumulator* sum) {
  const at::Tensor part_E = values_E.narrow(0, region.begin_E, region.num_elements());
  const auto norm =
      at::linalg_vector_norm(part_E, 2, c10::nullopt, false, at::kDouble).item<double>();
  sum->add(norm * norm);
}

}  // namespace

Lamb::Lamb(const OptimizerOptions& options, std::vector<FlatBuffer>& buffers,
           const ParamTable& params)
    : Elementwise(options, buffers, params), row_E_by_param_(row_elements(params)) {}

void Lamb::Squares::add(const Squares& others) {
  values.add(others.values);
  directions.add(others.directions);
}

double Lamb::Squares::trust_ratio() const {
  constexpr double kLeast = 1e-30 * 1e-30;  // of |r|²
  const double value = values.value(), direction = directions.value();
  return value > 0 && direction >= kLeast ? std::sqrt(value / direction) : 1;
}

/// Squares are taken of what the update has just brought into the cache, where it is dense.
void Lamb::update(const FlatBuffer& buffer, SlotPart* part, const GroupRates& rates) {
  squares_.resize(params().size());
  if (takes_kernels(buffer) && !part->is_packed()) return update_in_pieces(buffer, *part, rates);
  Elementwise::update(buffer, part, rates);
  for_each_slice(buffer, part->region, [&](const FlatSlice& slice, const ParamShard& region) {
    add_squares_of(buffer, slice, region, &squares_[static_cast<size_t>(slice.param)]);
  });
}

void Lamb::update_in_pieces(const FlatBuffer& buffer, const SlotPart& part,
                            const GroupRates& rates) {
  std::vector<SlicePiece> pieces;
  for_each_slice(buffer, part.region, [&](const FlatSlice& slice, const ParamShard& region) {
    add_pieces(slice, region, row_E_by_param_[static_cast<size_t>(slice.param)], &pieces);
  });
  const SlotData slots = data_of(part.slots);
  const rules::LambDirection<float> rule(options(), rates, num_updates());
  std::mutex mutex;
  at::parallel_for(0, static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto& [slice, region] = pieces[static_cast<size_t>(i)];
      const int64_t place = region.begin_E - part.region.begin_E;
      update_region(PackedMask(), data_of(buffer, region),
                    {.first = slots.first + place, .second = slots.second + place}, {}, rule);
      Squares sums;
      add_squares_of(buffer, *slice, region, &sums);
      const std::scoped_lock lock(mutex);
      squares_[static_cast<size_t>(slice->param)].add(sums);
    }
  });
}

void Lamb::add_squares_of(const FlatBuffer& buffer, const FlatSlice& slice,
                          const ParamShard& region, Squares* sums) const {
  if (buffer.values_E.is_cpu())
    return add_squares_of_two(buffer.values_E, buffer.grads_E, slice,
                              row_E_by_param_[static_cast<size_t>(slice.param)], region,
                              &sums->values, &sums->directions);
  add_rounded_squares(buffer.values_E, region, &sums->values);
  add_rounded_squares(buffer.grads_E, region, &sums->directions);
}

void Lamb::end_step(const StepRates& rates) {
  squares_.resize(params().size());
  if (is_divided()) join();
  for (size_t b = 0; b < buffers().size(); ++b) {
    const FlatBuffer& buffer = buffers()[b];
    if (buffer.frozen) continue;
    const double rate = rates[static_cast<size_t>(buffer.group)].learning_rate;
    for (const SlotPart& part : parts(b))
      for_each_slice(buffer, part.region, [&](const FlatSlice& slice, const ParamShard& region) {
        const rules::Sgd<double> step(rate *
                                      squares_[static_cast<size_t>(slice.param)].trust_ratio());
        if (takes_kernels(buffer))
          return update_region(PackedMask(), data_of(buffer, region), {}, {},
                               rules::Sgd<float>(-step.minus_rate));
        const auto in_region = [&](const at::Tensor& flat_E) {
          return flat_E.narrow(0, region.begin_E, region.num_elements());
        };
        in_region(buffer.values_E)
            .copy_(step(in_region(buffer.values_E), in_region(buffer.grads_E)));
      });
  }
  squares_.clear();
}

void Lamb::join() {
  const at::Tensor counters_PSC =
      at::empty({static_cast<int64_t>(squares_.size()), 2, kCounters}, at::kLong);
  const auto each_sum = [&](const auto& act) {
    int64_t* place = counters_PSC.mutable_data_ptr<int64_t>();
    for (Squares& one : squares_)
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
