#include "recal/timeline/lr_schedule.h"

#include <algorithm>
#include <numbers>

#include <fmt/format.h>

namespace lockstep::recal {
namespace {

constexpr int kSeriesTerms = 10;  // the next term is below 2^-60 at pi / 4

/// Taylor series in Horner form, innermost term first: 1 - x^2 / (n + 1) / (n + 2) * (1 - x^2 / (n
/// + 3) / (n + 4) * ...). Cosine for n = 0; sine divided by x for n = 1.
double series(double x, int n) {
  double sum = 1;
  for (int i = n + 2 * kSeriesTerms; i > n; i -= 2) sum = 1 - x * x / (i * (i - 1)) * sum;
  return sum;
}

}  // namespace

double cos_pi(double t) {
  // Symmetries reduce the argument to at most pi / 4, where the series converges fast.
  if (t > 0.5) return -cos_pi(1.0 - t);
  const double x = std::numbers::pi * (t <= 0.25 ? t : 0.5 - t);
  return t <= 0.25 ? series(x, 0) : x * series(x, 1);
}

double LrSchedule::fraction_at(int64_t step) const {
  const auto position = static_cast<double>(step);
  if (!cycles) return std::clamp((position - begin) / (end - begin), 0.0, 1.0);
  // The step is in cycle k, which begins at its exact position, not at a whole step.
  const int64_t k = cycles->last_until(step, steps_per_epoch);
  const double passed = position - cycles->position(k, steps_per_epoch);
  return std::clamp(passed / cycles->length(steps_per_epoch), 0.0, 1.0);
}

double LrSchedule::at(int64_t step) const {
  if (static_cast<double>(step) <= begin) return first;
  if (step >= last_step && !cycles) return last;
  // With cycles, the value after the window is that of its last step.
  const double t = fraction_at(std::min(step, last_step - 1));
  if (shape == Shape::kLinear) return first + (last - first) * t;
  return last + (first - last) * (1.0 + cos_pi(t)) / 2.0;
}

std::string LrSchedule::text() const {
  return fmt::format("{} from {} to {}{}", shape == Shape::kLinear ? "linear" : "cosine", first,
                     last, cycles ? ", again every " + cycles->period.text() : "");
}

std::string LrSchedule::canonical_text() const {
  // text() has all other values in their shortest exact form.
  std::string out = fmt::format("{} over {} to {} until {}", text(), begin, end, last_step);
  if (cycles)
    out += fmt::format(" cycles from {} epochs {} steps", cycles->start_epochs.text(),
                       cycles->start_steps);
  return out;
}

}  // namespace lockstep::recal
