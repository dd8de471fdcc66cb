#include "dist/bucket/squared_grad_norm.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include "dist/copy_to_host.h"

namespace lockstep::dist {

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
  const at::Tensor there_C = host_C.to(comm.device());
  comm.all_reduce(there_C, ReduceOp::kSum)->wait();
  const at::Tensor joined_C = copy_to_host(comm, there_C);
  items = joined_C.mutable_data_ptr<int64_t>();
  std::copy_n(items, num_counters, sum->counters().begin());
  std::copy_n(items + num_counters, flags.size(), flags.begin());
}

}  // namespace lockstep::dist
