#pragma once

#include <cstdint>

#include "optim/optimizer.h"
#include "recal/timeline/timeline.h"

namespace lockstep::train {

/// Learning rate and weight decay of each parameter group at each step: those of the recipe, else
/// the optimizer's own. Pure functions of the step. All references outlive this.
class RateSchedule {
 public:
  RateSchedule(const optim::OptimizerOptions& options, const recal::Timeline& timeline,
               int64_t total_steps)
      : options_(options), timeline_(timeline), total_steps_(total_steps) {}

  /// Returns the rates of the update at `step` (the number of updates done before it).
  optim::StepRates at(int64_t step) const;

 private:
  const optim::OptimizerOptions& options_;
  const recal::Timeline& timeline_;
  int64_t total_steps_;
};

}  // namespace lockstep::train
