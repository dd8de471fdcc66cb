#include "recal/time/step_converter.h"

#include <algorithm>

#include "base/error.h"

namespace lockstep::recal {
// All conversions of epochs are exact: Decimal::ceil_times() works on integers. In binary, ceil(1.1
// * 100) would be 111.
namespace {

/// Returns the last k' >= k that is at the same step. Doubles the stride, then halves it, because a
/// period may be far shorter than a step.
template <typename StepOf>
int64_t last_on_same_step(int64_t k, const StepOf& step_of) {
  const int64_t step = step_of(k);
  int64_t stride = 1;
  for (; step_of(k + stride) == step; stride *= 2) k += stride;
  for (; stride > 0; stride /= 2)
    if (step_of(k + stride) == step) k += stride;
  return k;
}

int64_t round_down(const Decimal& epoch) {
  const int64_t up = epoch.ceil_times(1);
  return Decimal(up) == epoch ? up : up - 1;
}

}  // namespace

Recurrence recurrence_of(const TrainTime& start, const Period& period) {
  check(!start.is_run_end(), "nothing can begin at the run's end");
  return {.start_epochs = start.epoch, .start_steps = start.step, .period = period};
}

StepConverter::StepConverter(const std::vector<Window>& windows, int64_t steps_per_epoch,
                             std::optional<int64_t> max_steps)
    : steps_per_epoch_(steps_per_epoch) {
  check(steps_per_epoch >= 1 && steps_per_epoch <= kMaxStepsPerEpoch, "steps per epoch: 1 to 10^9");
  bool names_run_end = false;
  for (const Window& window : windows) {
    if (window.start) note_start(*window.start);
    if (!window.end) continue;
    names_run_end = names_run_end || window.end->is_run_end();
    if (!window.end->is_run_end()) run_end_ = std::max(run_end_.value_or(0), step_of(*window.end));
  }
  // Only a start at or after every named end extends the run, so decimal ends stay exact.
  const std::optional<int64_t> named_end = run_end_;
  for (const Window& window : windows)
    if (named_end && window.start && !window.end && step_of(*window.start) >= *named_end)
      run_end_ = std::max(*run_end_, next_epoch(*window.start));
  min_epochs_ = first_epoch_.value_or(0);
  // A limit of steps is the run's end only if a modifier refers to the end and none names it.
  if (!run_end_ && names_run_end) run_end_ = max_steps;
  total_steps_ = run_end_;
}

void StepConverter::note_start(const TrainTime& start) {
  const int64_t epoch = start.kind == TrainTime::Kind::kEpoch ? round_down(start.epoch)
                                                              : start.step / steps_per_epoch_;
  first_epoch_ = std::min(first_epoch_.value_or(epoch), epoch);
}

int64_t StepConverter::next_epoch(const TrainTime& moment) const {
  if (moment.kind == TrainTime::Kind::kEpoch)
    return step_of(TrainTime::at_epoch(Decimal(moment.epoch.ceil_times(1))));
  return (moment.step + steps_per_epoch_ - 1) / steps_per_epoch_ * steps_per_epoch_;
}

bool StepConverter::knows(const Window& window) const {
  return run_end_ || !window.end || !window.end->is_run_end();
}

int64_t StepConverter::step_of(const TrainTime& moment) const {
  if (moment.kind == TrainTime::Kind::kStep) return moment.step;
  if (moment.kind == TrainTime::Kind::kEpoch) return moment.epoch.ceil_times(steps_per_epoch_);
  check(run_end_.has_value(), "the run's end is not known");
  return *run_end_;
}

double StepConverter::position_of(const TrainTime& moment) const {
  if (moment.kind == TrainTime::Kind::kEpoch)
    return moment.epoch.to_double() * static_cast<double>(steps_per_epoch_);
  return static_cast<double>(step_of(moment));
}

std::optional<std::vector<PeriodicUpdate>> StepConverter::updates(const TrainTime& start,
                                                                  const Period& period,
                                                                  int64_t end_step,
                                                                  size_t at_most) const {
  const Recurrence rhythm = recurrence_of(start, period);
  const auto step_of_update = [&](int64_t k) { return rhythm.step(k, steps_per_epoch_); };
  std::vector<PeriodicUpdate> found;
  for (int64_t k = 0; step_of_update(k) < end_step; ++k) {
    k = last_on_same_step(k, step_of_update);
    found.push_back({k, step_of_update(k)});
    if (found.size() > at_most) return std::nullopt;
  }
  return found;
}

double StepConverter::fraction_done(int64_t k, const Window& window, const Period& period) const {
  const bool in_epochs = window.start->kind == TrainTime::Kind::kEpoch &&
                         window.end->kind == TrainTime::Kind::kEpoch && period.steps == 0;
  // Ratios of epochs only: the curve then has the same values for every batch size.
  if (in_epochs)
    return static_cast<double>(k) * period.epochs.to_double() /
           (window.end->epoch.to_double() - window.start->epoch.to_double());
  const Recurrence rhythm = recurrence_of(*window.start, period);
  return static_cast<double>(k) * rhythm.length(steps_per_epoch_) /
         (position_of(*window.end) - position_of(*window.start));
}

std::optional<int64_t> StepConverter::max_epochs() const {
  if (!total_steps_) return std::nullopt;
  return (*total_steps_ + steps_per_epoch_ - 1) / steps_per_epoch_;
}

}  // namespace lockstep::recal
