#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/exact_numbers.h"

/// Moments and periods of a recipe, their exact conversion to steps, and curves between two values.
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

  /// First step at or after repetition k. Uses exact decimal arithmetic (base/exact_numbers.h).
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

/// Update k of a period, which happens at `step`. If several updates share a step, k is the last.
struct PeriodicUpdate {
  int64_t k = 0;
  int64_t step = 0;
};

/// Converts moments to steps, exactly: ceil(epoch x steps per epoch). The run ends at the largest
/// end of any modifier of the recipe. A modifier without an end that starts there or later extends
/// the run to the end of that epoch. If no modifier has an end, the run's other settings decide.
class StepConverter {
 public:
  static constexpr int64_t kMaxStepsPerEpoch = 1'000'000'000;
  static constexpr size_t kMaxUpdates = 100'000;  ///< of all modifiers together

  /// windows: those of the recipe's modifiers. max_steps: limit of the run, if any.
  StepConverter(const std::vector<Window>& windows, int64_t steps_per_epoch,
                std::optional<int64_t> max_steps);

  int64_t steps_per_epoch() const { return steps_per_epoch_; }
  /// True if the window's moments have steps. False if one is the run's end, which is unknown.
  bool knows(const Window& window) const;
  /// First step at or after a moment, which must be known.
  int64_t step_of(const TrainTime& moment) const;
  /// Exact position of a moment, in steps.
  double position_of(const TrainTime& moment) const;

  /// Updates at ceil(position of start + k x period), k = 0, 1, ..., before end_step. Returns
  /// nullopt if there are more than `at_most`.
  std::optional<std::vector<PeriodicUpdate>> updates(const TrainTime& start, const Period& period,
                                                     int64_t end_step, size_t at_most) const;
  /// Part of the window that has passed at update k: 0 or more. If window and period are in epochs,
  /// it does not depend on the steps per epoch.
  double fraction_done(int64_t k, const Window& window, const Period& period) const;

  /// Length of the whole run in steps, from the recipe's ends; nullopt if it has none.
  std::optional<int64_t> total_steps() const { return run_end_; }
  int64_t min_epochs() const { return first_epoch_.value_or(0); }  ///< smallest start, rounded down
  std::optional<int64_t> max_epochs() const;  ///< total_steps in epochs, rounded up

 private:
  void note_start(const TrainTime& start);
  /// First step of an epoch at or after the moment.
  int64_t next_epoch(const TrainTime& moment) const;

  int64_t steps_per_epoch_;
  std::optional<int64_t> run_end_, first_epoch_;
};

/// Returns the recurrence that begins at `start`, which must not be the run's end.
Recurrence recurrence_of(const TrainTime& start, const Period& period);

/// Fraction of the way from the first (0) to the last (1) value. done: fraction of the window, in
/// [0, 1].
///   linear         done
///   cubic          1 - (1 - done)^3        (Zhu & Gupta 2017, arXiv:1710.01878, eq. 1)
///   inverse_cubic  1 - (1 - done)^(1/3)
double curve(std::string_view inter_func, double done);

/// Names of the curves: cubic, linear, inverse_cubic.
const std::vector<std::string>& interpolation_names();

}  // namespace lockstep::recal
