#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "recal/modifier.h"

namespace lockstep::recal {

struct LearningRateOptions {
  Decimal start_epoch;
  Decimal end_epoch;
  std::string lr_class;             ///< ExponentialLR, StepLR, MultiStepLR
  double gamma = 1;                 ///< factor at each change
  Decimal period{1};                ///< StepLR: epochs between changes; ExponentialLR: 1
  std::vector<Decimal> milestones;  ///< MultiStepLR: absolute epochs of the changes, rising
  std::optional<double> init_lr;    ///< nothing: the optimizer's rate at start-up
};

/// Multiplies the learning rate by gamma at set epochs, beginning with init_lr at start_epoch.
/// Periods count from start_epoch, milestones are absolute. After end_epoch the last rate stays.
class LearningRate final : public Modifier {
 public:
  static constexpr std::string_view kTag = "LearningRateModifier";
  static std::unique_ptr<Modifier> read(YamlFields* in, Place place);

  LearningRate(LearningRateOptions options, Place place)
      : Modifier(std::move(place)), options_(std::move(options)) {}

  std::string_view tag() const override { return kTag; }
  Window window() const override { return {options_.start_epoch, options_.end_epoch}; }
  std::string summary() const override;
  void contribute(TimelineBuilder* builder) const override;

 private:
  LearningRateOptions options_;
};

}  // namespace lockstep::recal
