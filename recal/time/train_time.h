#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/decimal.h"

namespace lockstep::recal {

/// Moment of the run, written in epochs or in steps, or the run's end. One modifier may use both
/// units: they are compared once the steps per epoch are known.
struct TrainTime {
  enum class Kind { kEpoch, kStep, kRunEnd };
  Kind kind = Kind::kEpoch;
  Decimal epoch;     ///< for kEpoch
  int64_t step = 0;  ///< for kStep

  static TrainTime at_epoch(const Decimal& epoch) { return {Kind::kEpoch, epoch, 0}; }
  static TrainTime run_end() { return {Kind::kRunEnd, Decimal(), 0}; }

  bool is_run_end() const { return kind == Kind::kRunEnd; }
  /// Text as in a recipe: "2.5" (epochs), "step 345", "the run's end".
  std::string text() const;
  /// Text for a sentence: "epoch 2.5", "step 345", "the run's end".
  std::string sentence_text() const;
};

/// Duration in epochs or in steps; more than 0.
struct Period {
  Decimal epochs;     ///< 0 if in steps
  int64_t steps = 0;  ///< 0 if in epochs

  /// Text such as "0.5 epochs" or "20 steps".
  std::string text() const;
};

/// Part of the run: start inclusive, end exclusive. nullopt: no bound.
struct Window {
  std::optional<TrainTime> start;
  std::optional<TrainTime> end;
};

/// Position of a recipe's stage in the run. Moments written in a stage count from its start.
/// place() converts them to moments of the run.
class StageSpan {
 public:
  /// end: nullopt for the last stage, which may continue to the run's end.
  StageSpan(const TrainTime& start, const std::optional<TrainTime>& end)
      : start_(start), end_(end) {}

  const TrainTime& start() const { return start_; }
  void place(TrainTime* moment);
  void place(std::optional<TrainTime>* moment);
  void place(Window* window);
  void place(Decimal* epoch);
  /// Converts a window whose missing bounds are those of the stage.
  void place_open(Window* window);

  /// Reason why a moment could not be placed: its unit differs from that of the stage's start, or
  /// the sum is too large. Empty if all could be placed.
  const std::string& fault() const { return fault_; }

 private:
  TrainTime start_;
  std::optional<TrainTime> end_;
  std::string fault_;
};

/// Range of steps first, first + 1, ..., end - 1.
struct StepRange {
  int64_t first = 0;
  int64_t end = 0;  ///< exclusive
};

/// Start and period of something that repeats, exactly: position = epochs x S + steps, S = steps
/// per epoch. An event at a position acts at the first step at or after it.
struct Recurrence {
  Decimal start_epochs;
  int64_t start_steps = 0;
  Period period;

  /// First step at or after repetition k. Uses exact decimal arithmetic (base/decimal.h).
  int64_t step(int64_t k, int64_t steps_per_epoch) const {
    return start_steps + k * period.steps +
           start_epochs.ceil_times(k, period.epochs, steps_per_epoch);
  }
  /// Exact position of repetition k, in steps.
  double position(int64_t k, int64_t steps_per_epoch) const;
  /// Last k >= 0 with step(k) <= step. Requires step >= step(0).
  int64_t last_until(int64_t step, int64_t steps_per_epoch) const;
  /// Length of the period, in steps.
  double length(int64_t steps_per_epoch) const;
};
}  // namespace lockstep::recal
