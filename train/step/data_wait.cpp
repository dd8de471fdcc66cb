// Each rank decides alone whether to stop waiting; the reduction's sample count tells the others.
#include "train/step/data_wait.h"

#include <chrono>

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "base/log.h"
#include "base/trace/trace_span.h"

namespace lockstep::train {

data::Batch DataWait::next_batch() {
  const trace::Span span("data");
  before_ = loader_.position();
  has_left_ = false;
  if (!can_leave()) return loader_.next();
  const auto begin = std::chrono::steady_clock::now();
  const auto waited_s = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  std::optional<data::Batch> batch = loader_.next_unless([&] {
    // Before patience_s no stop is considered: data usually arrive in that time.
    if (waited_s() <= patience_s_) return false;
    stop_->listen();
    return is_told_to_stop();
  });
  if (batch) return *std::move(batch);
  has_left_ = true;
  log::info("train", fmt::format("told to stop, after {:.1f} s in which the data of the next step "
                                 "did not come: it is left out",
                                 waited_s()));
  return loader_.without_samples();
}

bool DataWait::stops_here(bool is_long, StepReport* report) const {
  const bool leaves = has_left_ || (is_long && is_told_to_stop());
  at::Tensor votes_3 = at::zeros({3}, at::kLong);
  votes_3[0] = leaves ? 1 : 0;
  votes_3[1] = stop_->stop_asked() ? 1 : 0;
  votes_3[2] = stop_->end_asked() ? 1 : 0;
  // Maximum over the ranks, so that all return the same.
  control_.all_reduce(votes_3, dist::ReduceOp::kMax)->wait();
  if (votes_3[0].item<int64_t>() == 0) return false;
  report->wants_stop = votes_3[1].item<int64_t>() > 0;
  report->must_end = votes_3[2].item<int64_t>() > 0;
  return true;
}

}  // namespace lockstep::train
