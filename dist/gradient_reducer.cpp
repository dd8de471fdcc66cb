#include "dist/gradient_reducer.h"

#include <chrono>
#include <cmath>

#include <ATen/ops/empty.h>

#include "base/error.h"
#include "dist/mean_gradient.h"

namespace lockstep::dist {
namespace {

// Places in the tensor of one step's numbers. Counts are exact in float64 up to 2^53.
enum : int64_t {
  kLossSum,
  kNumSamples,
  kNonFinite,
  kFirstVote,
  kNumShareItems = kFirstVote + kNumVotes
};

at::Tensor pack(const StepShare& share, at::Device device) {
  const at::Tensor share_V = at::empty({kNumShareItems}, at::kDouble);
  double* items = share_V.mutable_data_ptr<double>();
  items[kLossSum] = share.loss_sum;
  items[kNumSamples] = static_cast<double>(share.num_samples);
  items[kNonFinite] = share.finite && std::isfinite(share.loss_sum) ? 0 : 1;
  for (int i = 0; i < kNumVotes; ++i) items[kFirstVote + i] = (share.votes >> i) & 1U;
  return share_V.to(device);
}

StepTotals unpack(const at::Tensor& share_V) {
  const at::Tensor host_V = share_V.cpu();
  const double* items = host_V.const_data_ptr<double>();
  StepTotals totals;
  totals.num_samples = static_cast<int64_t>(items[kNumSamples]);
  totals.loss_mean = items[kLossSum] / items[kNumSamples];
  totals.num_nonfinite_ranks = static_cast<int64_t>(items[kNonFinite]);
  for (int i = 0; i < kNumVotes; ++i) totals.votes[i] = static_cast<int64_t>(items[kFirstVote + i]);
  return totals;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

GradientReducer::GradientReducer(Communicator& comm, std::vector<FlatBuffer>& buffers)
    : comm_(comm), buffers_(buffers) {}

void GradientReducer::begin_backward() {
  check(!armed_, "begin_backward() twice without finish()");
  armed_ = true;
}

StepTotals GradientReducer::finish(const StepShare& share) {
  check(armed_, "finish() without begin_backward()");
  check(share.votes < (1U << kNumVotes), "a vote beyond kNumVotes");
  armed_ = false;
  const auto start = std::chrono::steady_clock::now();
  const int64_t bytes_before = comm_.bytes_reduced();
  const at::Tensor share_V = pack(share, comm_.device());
  start_all(share_V);
  wait_all();

  StepTotals totals = unpack(share_V);
  totals.bytes_reduced = comm_.bytes_reduced() - bytes_before;
  totals.wait_s = seconds_since(start);
  check(totals.num_samples > 0, "a step without samples on any rank");
  totals.gradients_finite = take_means(totals.num_samples);
  return totals;
}

void GradientReducer::start_all(const at::Tensor& share_V) {
  for (const FlatBuffer& buffer : buffers_)
    if (!buffer.frozen) under_way_.push_back(comm_.all_reduce(buffer.grads_E, ReduceOp::kSum));
  under_way_.push_back(comm_.all_reduce(share_V, ReduceOp::kSum));
}

void GradientReducer::wait_all() {
  for (const auto& work : under_way_) work->wait();
  under_way_.clear();
}

bool GradientReducer::take_means(int64_t num_samples) {
  bool finite = true;
  for (const FlatBuffer& buffer : buffers_)
    if (!buffer.frozen) finite = divide_and_check(buffer.grads_E, num_samples) && finite;
  return finite;
}

}  // namespace lockstep::dist
