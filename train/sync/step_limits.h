#pragma once

#include <cstdint>

#include "base/step_clock.h"

namespace lockstep::train {

/// Counts faults in steps and ends the run if there are too many.
class StepLimits {
 public:
  /// max_nonfinite: number of skipped updates in a row that ends the run. max_damaged: most damaged
  /// samples of an epoch, over all ranks.
  StepLimits(int64_t max_nonfinite, int64_t max_damaged)
      : max_nonfinite_(max_nonfinite), max_damaged_(max_damaged) {}

  /// Resets the count of damaged samples at the first step of an epoch.
  void begin_step(const StepClock& clock);
  /// Adds damaged samples found on all ranks. Throws Error(kBadData).everywhere() above the limit.
  void add_damaged(int64_t num_samples, const StepClock& clock);

  /// Counts an update. counted: it was applied. is_excused: it was not, but the cause was handled.
  void add_update(bool counted, bool is_excused = false);
  bool too_many_nonfinite() const { return num_nonfinite_in_a_row_ >= max_nonfinite_; }
  /// Throws Error(kNonFinite).everywhere() if `too_many`, which is equal on all ranks.
  void require_finite(bool too_many, const StepClock& clock) const;

 private:
  const int64_t max_nonfinite_, max_damaged_;
  int64_t num_nonfinite_in_a_row_ = 0;
  int64_t num_damaged_of_epoch_ = 0;  // in this process
};

}  // namespace lockstep::train
