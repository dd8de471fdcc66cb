// Forward passes only collect sums; end_step() applies them once the update is known to count.
#include "train/gradients/batch_statistics.h"

#include <utility>

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include "base/device/to_device.h"
#include "train/gradients/stopwatch.h"

namespace lockstep::train {
namespace {

/// Encodes statistics as float64 [M] on the CPU, M = N + K: numbers of samples, then sums.
at::Tensor message_of(const model::SeenStatistics& seen) {
  return at::cat({at::tensor(seen.num_samples_N, at::kDouble), seen.sums_K.to(at::kCPU)});
}

/// Decodes them. like: statistics of the same model.
model::SeenStatistics seen_of(const at::Tensor& message_M, const model::SeenStatistics& like) {
  const auto num_norms = static_cast<int64_t>(like.num_samples_N.size());
  const auto* num_samples = message_M.const_data_ptr<double>();
  return {.num_samples_N = {num_samples, num_samples + num_norms},
          .sums_K = to_device(message_M.slice(0, num_norms), like.sums_K.device())};
}

}  // namespace

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
  // Read from the timeline, not stored: so a resumed run needs no extra state.
  norms_.set_frozen(timeline.quantization_at(step).batch_norm_frozen);
}

at::Tensor BatchStatistics::take_seen_after(double number) {
  const at::Tensor first = at::full({1}, number, at::kDouble);
  return norms_.empty() ? first : at::cat({first, message_of(norms_.take_seen())});
}

double BatchStatistics::give_seen_after(const at::Tensor& sums_V) {
  given_M_ = sums_V.slice(0, 1);
  return sums_V[0].item<double>();
}

void BatchStatistics::end_step(bool updated) {
  if (norms_.empty()) return;
  const std::optional<model::SeenStatistics> given = std::exchange(given_, std::nullopt);
  const model::SeenStatistics seen = given ? *given : norms_.take_seen();
  at::Tensor message_M = std::exchange(given_M_, {});
  // Every rank returns here or none: both conditions are equal on all ranks.
  if (!updated || norms_.is_frozen()) return;
  const bool is_of_all_ranks = control_.world_size() == 1 || sums_ != nullptr;
  if (!is_of_all_ranks)
    message_M = summed_over_ranks(message_M.defined() ? message_M : message_of(seen));
  norms_.update(message_M.defined() ? seen_of(message_M, seen) : seen);
}

at::Tensor BatchStatistics::summed_over_ranks(const at::Tensor& message_M) {
  const at::Tensor sums_M = message_M.to(control_.device());  // the same tensor on the CPU
  if (from_root_)
    control_.broadcast(sums_M, 0);
  else
    control_.all_reduce(sums_M, dist::ReduceOp::kSum)->wait();
  return sums_M.to(at::kCPU);
}

}  // namespace lockstep::train
