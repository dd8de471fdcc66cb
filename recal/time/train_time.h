#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/decimal.h"

namespace lockstep::recal {

/// A moment of the run, written in epochs or in steps, or the run's end. Both kinds may stand in
/// one modifier: they are compared once the steps per epoch are known.
struct TrainTime {
  enum class Kind { kEpoch, kStep, kRunEnd };
  Kind kind = Kind::kEpoch;
  Decimal epoch;     ///< kEpoch
  int64_t step = 0;  ///< kStep

  static TrainTime at_epoch(const Decimal& epoch) { return {Kind::kEpoch, epoch, 0}; }
  static TrainTime run_end() { return {Kind::kRunEnd, Decimal(), 0}; }

  bool is_run_end() const { return kind == Kind::kRunEnd; }
  /// "2.5" (epochs), "step 345", "the run's end".
  std::string text() const;
  /// The same in a sentence: "epoch 2.5", "step 345", "the run's end".
  std::string sentence_text() const;
};

/// A length of time, in epochs or in steps; more than 0.
struct Period {
  Decimal epochs;     ///< 0 if it is in steps
  int64_t steps = 0;  ///< 0 if it is in epochs

  /// "0.5 epochs", "20 steps".
  std::string text() const;
};

/// A part of the run: start inclusive, end exclusive. Nothing: no such bound.
struct Window {
  std::optional<TrainTime> start;
  std::optional<TrainTime> end;
};

/// Where a stage of a recipe lies in the run. Moments that are written in a stage count from its
/// start; place() turns them into the run's.
class StageSpan {
 public:
  /// end: nothing for the last stage, which may last to the run's end.
  StageSpan(const TrainTime& start, const std::optional<TrainTime>& end)
      : start_(start), end_(end) {}

  const TrainTime& start() const { return start_; }
  void place(TrainTime* moment);
  void place(std::optional<TrainTime>* moment);
  void place(Window* window);
  void place(Decimal* epoch);
  /// The same of a window whose missing bounds are the stage's.
  void place_open(Window* window);

  /// Why some moment could not be placed: its unit is not that of the stage's start, or the sum is
  /// too large. Empty: all could.
  const std::string& fault() const { return fault_; }

 private:
  TrainTime start_;
  std::optional<TrainTime> end_;
  std::string fault_;
};

/// Steps first, first + 1, ..., last - 1.
struct StepRange {
  int64_t first = 0;
  int64_t end = 0;  ///< exclusive
};

/// Where a moment and what repeats from it on fall, exactly: position = epochs x S + steps, S =
/// steps per epoch, and what is due at a position acts at the first step at or after it.
struct Recurrence {
  Decimal start_epochs;
  int64_t start_steps = 0;
  Period period;

  /// First step at or after repetition k. Source: exact decimal arithmetic (base/decimal.h).
  int64_t step(int64_t k, int64_t steps_per_epoch) const {
    return start_steps + k * period.steps +
           start_epochs.ceil_times(k, period.epochs, steps_per_epoch);
  }
  /// The position itself, in steps.
  double position(int64_t k, int64_t steps_per_epoch) const;
  /// The last k >= 0 with step(k) <= step; step must not lie before step(0).
  int64_t last_until(int64_t step, int64_t steps_per_epoch) const;
  /// Length of the period in steps.
  double length(int64_t steps_per_epoch) const;
};
}  // namespace lockstep::recal
