#include "recal/schedule/train_time.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/error.h"

// Exact conversion of moments and periods to steps, and curves between two values.
namespace lockstep::recal {
namespace {

/// Sum of two decimals. Exact if it has at most 18 digits; else cut to 18 digits, as eval(10 / 3)
/// is: stages of thirds of an epoch have 18 digits each. nullopt if the integer part has more.
std::optional<Decimal> sum_of(const Decimal& a, const Decimal& b) {
  if (const std::optional<Decimal> exact = a.plus(b)) return exact;
  const std::optional<Rational> left = Rational::parse(a.text());
  const std::optional<Rational> right = Rational::parse(b.text());
  if (!left || !right) return std::nullopt;
  const std::optional<Rational> sum = add(*left, *right);
  return sum ? Decimal::parse(sum->text()) : std::nullopt;
}

// All conversions of epochs are exact: Decimal::ceil_times() works on integers. In binary, ceil(1.1
// * 100) would be 111.

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

std::string TrainTime::text() const {
  return kind == Kind::kEpoch ? epoch.text() : sentence_text();
}

std::string TrainTime::sentence_text() const {
  if (is_run_end()) return "the run's end";
  return kind == Kind::kStep ? fmt::format("step {}", step) : "epoch " + epoch.text();
}

std::string Period::text() const {
  const std::string number = steps > 0 ? std::to_string(steps) : epochs.text();
  return fmt::format("{} {}{}", number, steps > 0 ? "step" : "epoch", number == "1" ? "" : "s");
}

void StageSpan::place(TrainTime* moment) {
  if (moment->is_run_end()) {
    // Without an end, the stage's end is that of the run.
    if (end_) *moment = *end_;
  } else if (moment->kind == TrainTime::Kind::kStep && start_.kind == TrainTime::Kind::kStep) {
    moment->step += start_.step;
  } else if (moment->kind == TrainTime::Kind::kEpoch && start_.kind == TrainTime::Kind::kEpoch) {
    place(&moment->epoch);
  } else if (moment->kind == TrainTime::Kind::kEpoch && moment->epoch == Decimal()) {
    // Epoch 0 of a stage is its start, in any unit.
    *moment = start_;
  } else if (start_.kind == TrainTime::Kind::kStep || start_.epoch > Decimal()) {
    fault_ = fmt::format(
        "'{}' counts from its stage's start, which is at {}: write both in epochs "
        "or both in steps",
        moment->sentence_text(), start_.sentence_text());
  }
}

void StageSpan::place(std::optional<TrainTime>* moment) {
  if (*moment) place(&**moment);
}

void StageSpan::place(Window* window) {
  place(&window->start);
  place(&window->end);
}

void StageSpan::place(Decimal* epoch) {
  if (start_.kind == TrainTime::Kind::kStep) {
    fault_ = fmt::format(
        "epoch {} counts from its stage's start, which is at {}: write both in "
        "epochs or both in steps",
        epoch->text(), start_.sentence_text());
    return;
  }
  if (const std::optional<Decimal> sum = sum_of(*epoch, start_.epoch)) {
    *epoch = *sum;
  } else {
    fault_ =
        fmt::format("epoch {} after epoch {} is too large", epoch->text(), start_.epoch.text());
  }
}

void StageSpan::place_open(Window* window) {
  place(window);
  // The first stage begins at step 0 anyway, so its windows may stay open.
  const bool is_first = start_.kind == TrainTime::Kind::kEpoch && start_.epoch == Decimal();
  if (!window->start && !is_first) window->start = start_;
  if (!window->end && end_) window->end = end_;
}

double Recurrence::length(int64_t steps_per_epoch) const {
  return static_cast<double>(period.steps) +
         period.epochs.to_double() * static_cast<double>(steps_per_epoch);
}

double Recurrence::position(int64_t k, int64_t steps_per_epoch) const {
  return static_cast<double>(start_steps) +
         start_epochs.to_double() * static_cast<double>(steps_per_epoch) +
         static_cast<double>(k) * length(steps_per_epoch);
}

int64_t Recurrence::last_until(int64_t wanted_step, int64_t steps_per_epoch) const {
  const double passed = static_cast<double>(wanted_step) - position(0, steps_per_epoch);
  // The estimate is rounded and thus off by one at most. The exact steps decide.
  int64_t k = std::max<int64_t>(0, std::llround(passed / length(steps_per_epoch)));
  while (k > 0 && step(k, steps_per_epoch) > wanted_step) --k;
  while (step(k + 1, steps_per_epoch) <= wanted_step) ++k;
  return k;
}

Recurrence recurrence_of(const TrainTime& start, const Period& period) {
  check(!start.is_run_end(), "nothing can start at the run's end");
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
  // A limit of steps is the run's end only if a modifier refers to the end and none names it.
  if (!run_end_ && names_run_end) run_end_ = max_steps;
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
  if (!run_end_) return std::nullopt;
  return (*run_end_ + steps_per_epoch_ - 1) / steps_per_epoch_;
}

const std::vector<std::string>& interpolation_names() {
  static const std::vector<std::string> names{"cubic", "linear", "inverse_cubic"};
  return names;
}

double curve(std::string_view inter_func, double done) {
  const double left = 1.0 - std::clamp(done, 0.0, 1.0);
  // Unknown names cannot occur: read_choice() has checked them.
  if (inter_func == "linear") return 1.0 - left;
  if (inter_func == "inverse_cubic") return 1.0 - std::cbrt(left);
  return 1.0 - left * left * left;
}

}  // namespace lockstep::recal
