#pragma once

#include <cstdint>

namespace lockstep {

/// Position of the training, the same on every rank. A step is one optimizer update, never a
/// micro-batch.
struct StepClock {
  int64_t step = 0;             ///< updates done
  int64_t steps_per_epoch = 1;  ///< ceil(samples / global batch), or floor with drop_last

  int64_t step_in_epoch() const { return step % steps_per_epoch; }
  double epoch() const { return static_cast<double>(step) / static_cast<double>(steps_per_epoch); }
};

}  // namespace lockstep
