// Counts are equal on all ranks, so all throw at the same step.
#include "train/sync/step_limits.h"

#include <fmt/format.h>

#include "base/error.h"

namespace lockstep::train {

void StepLimits::begin_step(const StepClock& clock) {
  if (clock.step_in_epoch() == 0) num_damaged_of_epoch_ = 0;
}

void StepLimits::add_damaged(int64_t num_samples, const StepClock& clock) {
  num_damaged_of_epoch_ += num_samples;
  if (num_damaged_of_epoch_ > max_damaged_)
    throw Error(ExitCode::kBadData, "data",
                fmt::format("{} damaged samples in this epoch, up to step {}; at most {} are "
                            "skipped (data.max_skipped); the log names them: mend the files",
                            num_damaged_of_epoch_, clock.step, max_damaged_))
        .everywhere();
}

void StepLimits::add_update(bool counted, bool is_excused) {
  if (counted)
    num_nonfinite_in_a_row_ = 0;
  else if (!is_excused)
    ++num_nonfinite_in_a_row_;
}

void StepLimits::require_finite(bool too_many, const StepClock& clock) const {
  if (!too_many) return;
  throw Error(ExitCode::kNonFinite, "train",
              fmt::format("the last {} updates up to step {} were not finite and were skipped; "
                          "lower the learning rate "
                          "or look at the data",
                          max_nonfinite_, clock.step))
      .everywhere();
}

}  // namespace lockstep::train
