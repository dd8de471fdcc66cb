#pragma once

#include <string>
#include <vector>

#include "base/yaml/config_reader.h"
#include "recal/time/train_time.h"

namespace lockstep::recal {

/// Rate change of a LearningRateModifier: `lr_class` and its `lr_kwargs`.
struct LrScheduler {
  std::string name;  ///< ExponentialLR, StepLR, MultiStepLR, CosineAnnealingWarmRestarts
  double gamma = 1;  ///< first three classes: factor at each change
  Period period;     ///< ExponentialLR: 1 epoch; StepLR: between changes; Cosine...: a cycle
  std::vector<Decimal> milestones;  ///< MultiStepLR: absolute epochs of the changes, ascending
  double lr_min = 0;                ///< CosineAnnealingWarmRestarts: rate at the end of a cycle

  bool restarts() const { return name == "CosineAnnealingWarmRestarts"; }
  bool is_multi_step() const { return name == "MultiStepLR"; }
  /// Text such as "x0.9 every 2 epochs".
  std::string text() const;
};

/// Reads both required keys. window: bounds for the milestones; null if the window is faulty.
void read_rate_class(ConfigReader* in, const Window* window, LrScheduler* rate);

}  // namespace lockstep::recal
