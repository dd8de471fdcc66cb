#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "recal/time/train_time.h"

namespace lockstep::recal {

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
  double epoch_of(int64_t step) const {
    return static_cast<double>(step) / static_cast<double>(steps_per_epoch_);
  }
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
  std::optional<int64_t> total_steps() const { return total_steps_; }
  int64_t min_epochs() const { return min_epochs_; }  ///< smallest start, rounded down
  std::optional<int64_t> max_epochs() const;          ///< total_steps in epochs, rounded up

 private:
  void note_start(const TrainTime& start);
  /// First step of an epoch at or after the moment.
  int64_t next_epoch(const TrainTime& moment) const;

  int64_t steps_per_epoch_;
  std::optional<int64_t> run_end_, total_steps_;
  std::optional<int64_t> first_epoch_;
  int64_t min_epochs_ = 0;
};

/// Returns the recurrence that begins at `start`, which must not be the run's end.
Recurrence recurrence_of(const TrainTime& start, const Period& period);

}  // namespace lockstep::recal
