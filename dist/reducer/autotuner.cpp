// Measures two ways in alternate steps, so that drift of the machine affects both alike.
#include "dist/reducer/autotuner.h"

#include <algorithm>

#include <ATen/ops/empty.h>

#include "base/error.h"
#include "dist/copy_to_host.h"

namespace lockstep::dist {
namespace {

// One uncounted step of each way: the first use of a way allocates memory.
constexpr int kWarmSteps = 2;

/// Reduces to the largest alone_s and the smallest together_s over the ranks, in place, in one
/// message.
void merge_over_ranks(std::vector<ItemSeconds>* steps, Communicator& comm) {
  const auto num = static_cast<int64_t>(steps->size());
  const at::Tensor host_2S = at::empty({2 * num}, at::kDouble);
  double* seconds = host_2S.mutable_data_ptr<double>();
  for (int64_t i = 0; i < num; ++i) {
    seconds[2 * i] = -(*steps)[static_cast<size_t>(i)].alone_s;  // -min(-x) is the maximum
    seconds[2 * i + 1] = (*steps)[static_cast<size_t>(i)].together_s;
  }
  const at::Tensor there_2S = host_2S.to(comm.device());
  comm.all_reduce(there_2S, ReduceOp::kMin)->wait();
  const at::Tensor merged_2S = copy_to_host(comm, there_2S);
  seconds = merged_2S.mutable_data_ptr<double>();
  for (int64_t i = 0; i < num; ++i)
    (*steps)[static_cast<size_t>(i)] = {-seconds[2 * i], seconds[2 * i + 1]};
}

double median(std::array<double, Autotuner::kRounds> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}  // namespace

void Autotuner::start(size_t num_items) {
  num_items_ = num_items;
  num_steps_ = 0;
  steps_.clear();
}

std::optional<std::vector<bool>> Autotuner::add_step(const std::vector<ItemSeconds>& items,
                                                     Communicator& comm) {
  check(is_running() && items.size() == num_items_, "a step of another trial");
  if (num_steps_++ < kWarmSteps) return std::nullopt;
  steps_.insert(steps_.end(), items.begin(), items.end());
  if (num_steps_ < kWarmSteps + 2 * kRounds) return std::nullopt;
  std::vector<bool> found = verdict(comm);
  start(0);
  return found;
}

std::vector<bool> Autotuner::verdict(Communicator& comm) {
  merge_over_ranks(&steps_, comm);
  const auto median_of = [&](size_t item, size_t way) {
    std::array<double, kRounds> rounds{};
    for (size_t round = 0; round < kRounds; ++round) {
      const ItemSeconds& found = steps_[(2 * round + way) * num_items_ + item];
      rounds[round] = found.alone_s + found.together_s;
    }
    return median(rounds);
  };
  std::vector<bool> second_is_faster;
  for (size_t item = 0; item < num_items_; ++item)
    second_is_faster.push_back(median_of(item, 1) < median_of(item, 0));
  return second_is_faster;
}

}  // namespace lockstep::dist
