#pragma once

#include <cstdint>

#include "base/step_clock.h"

namespace lockstep::train {

/// Counts what went wrong in steps, and ends the run where that is too much.
class StepLimits {
 public:
  /// max_nonfinite: updates in a row that may not count, less one; max_damaged: samples of an
  /// epoch, over all ranks.
  StepLimits(int64_t max_nonfinite, int64_t max_damaged)
      : max_nonfinite_(max_nonfinite), max_damaged_(max_damaged) {}

  /// At the first step of an epoch the count of its damaged samples begins anew.
  void begin_step(const StepClock& clock);
  /// Damaged samples that were found on all ranks. Throws Error(kBadData).everywhere() where that
  /// is too many.
  void add_damaged(int64_t num_samples, const StepClock& clock);

  /// Whether the update counted. `is_excused`: it did not, but something was done about it.
  void add_update(bool counted, bool is_excused = false);
  bool too_many_nonfinite() const { return num_nonfinite_in_a_row_ >= max_nonfinite_; }
  /// Throws Error(kNonFinite).everywhere() if `too_many`, which is equal on all ranks.
  void require_finite(bool too_many, const StepClock& clock) const;

 private:
  const int64_t max_nonfinite_, max_damaged_;
  int64_t num_nonfinite_in_a_row_ = 0;
  int64_t num_damaged_of_epoch_ = 0;  // since this process trains
};

}  // namespace lockstep::train
