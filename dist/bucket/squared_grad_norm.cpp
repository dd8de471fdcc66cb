#include "dist/bucket/squared_grad_norm.h"

#include <algorithm>
#include <array>

#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "base/error.h"
#include "dist/bucket/shard_alignment.h"
#include "dist/copy_to_host.h"

namespace lockstep::dist {
namespace {

constexpr int kLanes = 16;

/// Squares of float32 and narrower are exact in float64, so fused and separate operations give the
/// same bits; those of float64 are rounded by themselves on every machine that has no fused ones.
template <typename T>
double squares_of(const T* items, int64_t num_items) {
  std::array<double, kLanes> lanes{};
  int64_t i = 0;
  for (; i + kLanes <= num_items; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) {
      const auto item = static_cast<double>(items[i + lane]);
      lanes[lane] += item * item;
    }
  for (int lane = 0; i < num_items; ++i, ++lane) {
    const auto item = static_cast<double>(items[i]);
    lanes[lane] += item * item;
  }
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  return lanes[0];
}

double squares_of(const at::Tensor& values_E, int64_t begin_E, int64_t end_E) {
  const int64_t num_items = end_E - begin_E;
  switch (values_E.scalar_type()) {
    case at::kFloat:
      return squares_of(values_E.const_data_ptr<float>() + begin_E, num_items);
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

/// The part of a slice within [begin_E, end_E), unit by unit.
void add_units(const at::Tensor& values_E, const FlatSlice& slice, int64_t row_E, int64_t begin_E,
               int64_t end_E, Superaccumulator* sum) {
  const int64_t slice_end_E = std::min(end_E, slice.offset_E + slice.num_elements);
  int64_t at_E = std::max(begin_E, slice.offset_E);
  while (at_E < slice_end_E) {
    const int64_t in_row_E = (at_E - slice.offset_E) % row_E;
    const int64_t rest_E = std::min(row_E - in_row_E, kCutElements - in_row_E % kCutElements);
    const int64_t next_E = std::min(at_E + rest_E, slice_end_E);
    sum->add(squares_of(values_E, at_E, next_E));
    at_E = next_E;
  }
}

}  // namespace

void add_squares(const at::Tensor& values_E, const FlatBuffer& buffer, const ParamShard& region,
                 const std::vector<int64_t>& row_E_by_param, Superaccumulator* sum) {
  if (region.begin_E >= region.end_E) return;
  if (buffer.slices.empty() || row_E_by_param.empty())
    return add_units(values_E, {.num_elements = values_E.numel()}, values_E.numel(), region.begin_E,
                     region.end_E, sum);
  for (const FlatSlice& slice : buffer.slices)
    add_units(values_E, slice, row_E_by_param.at(static_cast<size_t>(slice.param)), region.begin_E,
              region.end_E, sum);
}

at::Tensor gradient_norms(const std::vector<FlatBuffer>& buffers,
                          const std::vector<ParamShard>& regions) {
  std::vector<at::Tensor> norms;
  for (const ParamShard& region : regions) {
    const at::Tensor part_E =
        buffers[region.buffer].grads_E.narrow(0, region.begin_E, region.end_E - region.begin_E);
    norms.push_back(at::linalg_vector_norm(part_E, 2, c10::nullopt, false, at::kDouble));
  }
  return at::stack(norms);
}

void add_gradient_squares(Communicator& comm, const std::vector<FlatBuffer>& buffers,
                          const std::vector<ParamShard>& regions,
                          const std::vector<int64_t>& row_E_by_param, Superaccumulator* sum) {
  if (comm.device().is_cpu()) {
    for (const ParamShard& region : regions)
      add_squares(buffers[region.buffer].grads_E, buffers[region.buffer], region, row_E_by_param,
                  sum);
    return;
  }
  if (regions.empty()) return;
  const at::Tensor norms_R = copy_to_host(comm, gradient_norms(buffers, regions));
  const double* norms = norms_R.const_data_ptr<double>();
  for (size_t i = 0; i < regions.size(); ++i) sum->add(norms[i] * norms[i]);
}

void join_over_ranks(Communicator& comm, Superaccumulator* sum, std::span<int64_t> flags) {
  const auto num_counters = static_cast<int64_t>(Superaccumulator::kNumCounters);
  const at::Tensor host_C =
      at::empty({num_counters + static_cast<int64_t>(flags.size())}, at::kLong);
  int64_t* items = host_C.mutable_data_ptr<int64_t>();
  std::copy(sum->counters().begin(), sum->counters().end(), items);
  std::copy(flags.begin(), flags.end(), items + num_counters);
  const at::Tensor there_C = host_C.to(comm.device());
  comm.all_reduce(there_C, ReduceOp::kSum)->wait();
  const at::Tensor joined_C = copy_to_host(comm, there_C);
  items = joined_C.mutable_data_ptr<int64_t>();
  std::copy_n(items, num_counters, sum->counters().begin());
  std::copy_n(items + num_counters, flags.size(), flags.begin());
}

}  // namespace lockstep::dist
