#include "train/step/batch_statistics.h"

#include <utility>

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>

#include "train/step/stopwatch.h"

namespace lockstep::train {

BatchStatistics::BatchStatistics(model::Model& model, dist::Communicator& control,
                                 const std::string& mode)
    : norms_(model.batch_norms()), control_(control), from_root_(mode == "broadcast") {
  if (mode != "sync" || norms_.empty() || control.world_size() == 1) return;
  sums_ = control.split(0, control.rank());
  norms_.set_sum_over_ranks([this](const at::Tensor& values_K) {
    const at::Tensor on_host_K = values_K.to(sums_->device());  // the same tensor on the CPU
    Stopwatch watch;
    sums_->all_reduce(on_host_K, dist::ReduceOp::kSum)->wait();
    wait_s_ += watch.lap();
    if (!on_host_K.is_same(values_K)) values_K.copy_(on_host_K);
  });
}

BatchStatistics::~BatchStatistics() {
  if (sums_ != nullptr) norms_.set_sum_over_ranks({});
}

void BatchStatistics::follow(const recal::Timeline& timeline, int64_t step) {
  if (norms_.empty()) return;
  if (has_followed_ && timeline.due_at(step).empty()) return;
  has_followed_ = true;
  norms_.set_frozen(timeline.quantization_at(step).batch_norm_frozen);
}

at::Tensor BatchStatistics::take_seen_after(double number) {
  const at::Tensor first = at::full({1}, number, at::kDouble);
  return norms_.empty() ? first : at::cat({first, norms_.take_seen().to(at::kCPU)});
}

double BatchStatistics::give_seen_after(const at::Tensor& sums_V) {
  given_K_ = sums_V.slice(0, 1);
  return sums_V[0].item<double>();
}

void BatchStatistics::end_step(bool updated) {
  if (norms_.empty()) return;
  at::Tensor seen_K = norms_.take_seen();
  if (given_K_.defined()) seen_K = std::exchange(given_K_, {}).to(seen_K.device());
  if (!updated || norms_.is_frozen()) return;
  const at::Tensor on_host_K = seen_K.to(control_.device());
  if (from_root_)
    control_.broadcast(on_host_K, 0);
  else if (sums_ == nullptr)
    control_.all_reduce(on_host_K, dist::ReduceOp::kSum)->wait();
  norms_.update(on_host_K.to(seen_K.device()));
}

}  // namespace lockstep::train
