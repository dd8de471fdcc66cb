#include "model/batch_norm_table.h"

#include <algorithm>
#include <span>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"

namespace lockstep::model {
namespace {

using States = std::span<const std::unique_ptr<BatchNormState>>;

/// Number of means and variances [K] of these states.
int64_t num_sums(States states) {
  int64_t num = 0;
  for (const auto& state : states) num += 2 * state->moving_mean_C.numel();
  return num;
}

/// Calls visit(begin, end) for each longest run of neighbours among `count` that are alike.
template <typename AreAlike, typename Visit>
void for_runs(size_t count, const AreAlike& are_alike, const Visit& visit) {
  for (size_t begin = 0, end = 0; begin < count; begin = end) {
    while (end < count && are_alike(begin, end)) ++end;
    visit(begin, end);
  }
}

bool saw_equally_many(const BatchNormState& a, const BatchNormState& b) {
  return std::ranges::equal(a.seen, b.seen, {}, &SeenBatch::num_samples, &SeenBatch::num_samples);
}

/// Weighted sum over forward passes. All states must have seen equal numbers of samples.
at::Tensor sums_over_samples(States alike) {
  const BatchNormState& first = *alike.front();
  if (first.seen.empty())
    return at::zeros({num_sums(alike)}, first.moving_mean_C.options().dtype(at::kDouble));
  at::Tensor sums_K;
  // One concatenation per pass: few kernels, however many normalisations there are.
  for (size_t pass = 0; pass < first.seen.size(); ++pass) {
    std::vector<at::Tensor> parts;
    for (const auto& state : alike)
      parts.insert(parts.end(), {state->seen[pass].mean_C, state->seen[pass].variance_C});
    const at::Tensor values_K = at::cat(parts).to(at::kDouble);
    const double num_samples = first.seen[pass].num_samples;
    sums_K = sums_K.defined() ? sums_K.add_(values_K, num_samples) : values_K * num_samples;
  }
  return sums_K;
}

double num_samples_of(const BatchNormState& state) {
  double sum = 0;
  for (const SeenBatch& batch : state.seen) sum += batch.num_samples;
  return sum;
}

/// Moves statistics by 1 - kKept towards the new values. Computes in float64 and rounds once.
void move_towards(const at::Tensor& goals_K, States states) {
  std::vector<at::Tensor> moving, num_batches;
  std::vector<int64_t> sizes;
  for (const auto& state : states) {
    moving.insert(moving.end(), {state->moving_mean_C, state->moving_variance_C});
    sizes.insert(sizes.end(), 2, state->moving_mean_C.numel());
    num_batches.push_back(state->num_batches);
  }
  const at::Tensor before_K = at::cat(moving).to(at::kDouble);
  const at::Tensor after_K =
      before_K.add(goals_K - before_K, 1 - BatchNormTable::kKept).to(at::kFloat);
  // One kernel for all tensors, instead of one per tensor.
  at::_foreach_copy_(moving, after_K.split_with_sizes(sizes));
  at::_foreach_add_(num_batches, 1);
}

}  // namespace

BatchNormState& BatchNormTable::add(int64_t num_channels) {
  states_.push_back(
      std::make_unique<BatchNormState>(BatchNormState{.moving_mean_C = at::zeros({num_channels}),
                                                      .moving_variance_C = at::ones({num_channels}),
                                                      .num_batches = at::zeros({}, at::kLong),
                                                      .seen = {}}));
  return *states_.back();
}

void BatchNormTable::move_to(at::Device device) {
  for (const auto& state : states_) {
    for (at::Tensor* tensor :
         {&state->moving_mean_C, &state->moving_variance_C, &state->num_batches})
      // set_data keeps the tensor's identity: layers and the buffer list refer to it.
      tensor->set_data(tensor->to(device));
    check(state->seen.empty(), "the model moves before its first forward pass");
  }
}

SeenStatistics BatchNormTable::take_seen() {
  const at::NoGradGuard no_grad;
  SeenStatistics seen;
  std::vector<at::Tensor> sums;
  for_runs(
      states_.size(),
      [&](size_t a, size_t b) { return saw_equally_many(*states_[a], *states_[b]); },
      [&](size_t begin, size_t end) {
        sums.push_back(sums_over_samples(States(states_).subspan(begin, end - begin)));
      });
  // A model without batch normalisation takes part in the sum over ranks with an empty tensor.
  if (sums.empty()) sums.push_back(at::zeros({0}, at::kDouble));
  seen.sums_K = sums.size() == 1 ? sums.front() : at::cat(sums);
  for (const auto& state : states_) {
    seen.num_samples_N.push_back(num_samples_of(*state));
    state->seen.clear();
  }
  return seen;
}

void BatchNormTable::update(const SeenStatistics& seen) {
  const at::NoGradGuard no_grad;
  const std::vector<double>& num_samples_N = seen.num_samples_N;
  check(num_samples_N.size() == states_.size(), "statistics of this model");
  int64_t begin_K = 0;
  for_runs(
      states_.size(), [&](size_t a, size_t b) { return num_samples_N[a] == num_samples_N[b]; },
      [&](size_t begin, size_t end) {
        const States states = States(states_).subspan(begin, end - begin);
        const at::Tensor sums_K = seen.sums_K.narrow(0, begin_K, num_sums(states));
        begin_K += sums_K.numel();
        if (num_samples_N[begin] != 0) move_towards(sums_K / num_samples_N[begin], states);
      });
}

}  // namespace lockstep::model
