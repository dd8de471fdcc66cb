// Waits for data, limits on faults, and messages about skipped updates. Each rank decides alone
// whether to stop waiting; the reduction's sample count tells the others.
#include "train/step/skipped_steps.h"

#include <chrono>

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "base/trace.h"

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

// Counts are equal on all ranks, so all throw at the same step.

void StepLimits::begin_step(const StepClock& clock) {
  if (clock.step_in_epoch() == 0) num_damaged_of_epoch_ = 0;
}

void StepLimits::add_damaged(int64_t num_samples, const StepClock& clock) {
  num_damaged_of_epoch_ += num_samples;
  if (num_damaged_of_epoch_ > max_damaged_)
    throw Error(ExitCode::kBadData, "data",
                fmt::format("{} damaged samples in this epoch, up to step {}; at most {} are "
                            "skipped (data.max_skipped); the log names them: mend the files",
                            num_damaged_of_epoch_, clock.step, max_damaged_))
        .everywhere();
}

void StepLimits::add_update(bool counted, bool is_excused) {
  if (counted)
    num_nonfinite_in_a_row_ = 0;
  else if (!is_excused)
    ++num_nonfinite_in_a_row_;
}

void StepLimits::require_finite(bool too_many, const StepClock& clock) const {
  if (!too_many) return;
  throw Error(ExitCode::kNonFinite, "train",
              fmt::format("the last {} updates up to step {} were not finite and were skipped; "
                          "lower the learning rate "
                          "or look at the data",
                          max_nonfinite_, clock.step))
      .everywhere();
}

namespace {

constexpr double kTellEvery_s = 60;

double steady_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

SkippedUpdates::SkippedUpdates(std::function<double()> clock_s)
    : clock_s_(clock_s ? std::move(clock_s) : steady_s) {}

std::optional<std::string> SkippedUpdates::add(int64_t step, const std::string& why) {
  ++num_skipped_;
  const double now_s = clock_s_();
  // Counted but not logged; the next message contains the number.
  if (told_at_s_ && now_s - *told_at_s_ < kTellEvery_s) return std::nullopt;
  told_at_s_ = now_s;
  return fmt::format("step {}: the update was skipped, because {}; skipped so far: {}", step, why,
                     num_skipped_);
}

}  // namespace lockstep::train
