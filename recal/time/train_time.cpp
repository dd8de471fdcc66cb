#include "recal/time/train_time.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/rational.h"

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

}  // namespace

std::string TrainTime::text() const {
  return kind == Kind::kEpoch ? epoch.text() : sentence_text();
}

std::string TrainTime::sentence_text() const {
  switch (kind) {
    case Kind::kEpoch:
      return "epoch " + epoch.text();
    case Kind::kStep:
      return fmt::format("step {}", step);
    case Kind::kRunEnd:
      return "the run's end";
  }
  return "";
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
        fmt::format("epoch {} behind epoch {} is too large", epoch->text(), start_.epoch.text());
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

}  // namespace lockstep::recal
