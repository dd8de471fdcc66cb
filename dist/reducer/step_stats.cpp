#include "dist/reducer/step_stats.h"

#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include "base/tensors/tensor_memory.h"

namespace lockstep::dist {
namespace {

// Indices into the tensor of step statistics. Counts are exact in float64 up to 2^53.
enum : int64_t {
  kLossSum,
  kNumSamples,
  kNumSkipped,
  kNonFinite,
  kWorkSeconds,
  kLateSeconds,
  kFirstVote,
  kNumStats = kFirstVote + kNumVotes
};

}  // namespace

at::Tensor encode_stats(const LocalStepStats& local, at::Device device) {
  const auto num_counts = static_cast<int64_t>(local.counts.size());
  const at::Tensor local_V = at::empty({kNumStats + num_counts}, at::kDouble);
  double* items = local_V.mutable_data_ptr<double>();
  // A NaN makes the sum non-finite, so that found_inf() on a device skips the step too.
  items[kLossSum] = local.has_left ? std::nan("") : local.loss_sum;
  items[kNumSamples] = static_cast<double>(local.num_samples);
  items[kNumSkipped] = static_cast<double>(local.num_skipped);
  items[kNonFinite] = local.finite && std::isfinite(local.loss_sum) ? 0 : 1;
  items[kWorkSeconds] = local.work_s;
  items[kLateSeconds] = local.late_s;
  for (int i = 0; i < kNumVotes; ++i) items[kFirstVote + i] = (local.votes >> i) & 1U;
  std::copy(local.counts.begin(), local.counts.end(), items + kNumStats);
  // The loss is added on the device, so the host need not wait for it.
  const at::Tensor device_V = to_device(local_V, device);
  if (local.loss_sum_on_device.defined()) device_V[kLossSum].add_(local.loss_sum_on_device);
  return device_V;
}

at::Tensor found_inf(const at::Tensor& sums_V, const at::Tensor& largest_1, size_t num_counts) {
  at::Tensor sum_1 = sums_V.narrow(0, kLossSum, 1) + largest_1;  // finite if both are
  at::Tensor found_inf_1 = at::empty({1}, sums_V.options().dtype(at::kFloat));
  // x - x is 0 for a finite x and NaN otherwise, so only a good step without counts gives 0.
  sum_1 = sum_1 - sum_1;
  for (size_t i = 0; i < num_counts; ++i)
    sum_1 = sum_1 + sums_V.narrow(0, kNumStats + static_cast<int64_t>(i), 1);
  return at::ne_out(found_inf_1, sum_1, 0);
}

GlobalStepStats decode_stats(const at::Tensor& sums_V, size_t num_counts) {
  const at::Tensor host_V = sums_V.cpu();
  const double* items = host_V.const_data_ptr<double>();
  GlobalStepStats totals;
  totals.num_samples = static_cast<int64_t>(items[kNumSamples]);
  totals.num_skipped = static_cast<int64_t>(items[kNumSkipped]);
  totals.loss_mean = items[kLossSum] / items[kNumSamples];
  totals.num_nonfinite_ranks = static_cast<int64_t>(items[kNonFinite]);
  if (!std::isfinite(items[kLossSum]))  // a rank whose host has not seen its loss
    totals.num_nonfinite_ranks = std::max<int64_t>(1, totals.num_nonfinite_ranks);
  totals.work_s = items[kWorkSeconds];
  totals.late_s = items[kLateSeconds];
  for (int i = 0; i < kNumVotes; ++i) totals.votes[i] = static_cast<int64_t>(items[kFirstVote + i]);
  totals.counts.assign(items + kNumStats, items + kNumStats + num_counts);
  return totals;
}

at::Tensor gradient_norms(const std::vector<FlatBuffer>& buffers,
                          const std::vector<ParamShard>& regions) {
  std::vector<at::Tensor> norms;
  for (const ParamShard& region : regions) {
    const at::Tensor part_E =
        buffers[region.buffer].grads_E.narrow(0, region.begin_E, region.end_E - region.begin_E);
    norms.push_back(at::linalg_vector_norm(part_E, 2, c10::nullopt, false, at::kDouble));
  }
  // One tensor, so that the host copies all norms at once.
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
  // Counters and flags share one message. Integer sums are exact, so no order of ranks matters.
  const at::Tensor host_C =
      at::empty({num_counters + static_cast<int64_t>(flags.size())}, at::kLong);
  int64_t* items = host_C.mutable_data_ptr<int64_t>();
  std::copy(sum->counters().begin(), sum->counters().end(), items);
  std::copy(flags.begin(), flags.end(), items + num_counters);
  const at::Tensor joined_C = reduced_on_host(comm, host_C, ReduceOp::kSum);
  items = joined_C.mutable_data_ptr<int64_t>();
  std::copy_n(items, num_counters, sum->counters().begin());
  std::copy_n(items + num_counters, flags.size(), flags.begin());
}

}  // namespace lockstep::dist
