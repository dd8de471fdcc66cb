#pragma once

#include <memory>

#include "recal/modifier.h"

namespace lockstep::recal {

struct SetLearningRateOptions {
  Decimal start_epoch;
  double learning_rate = 0;
};

/// Sets the learning rate once, at start_epoch; it stays until another modifier writes it.
class SetLearningRate final : public Modifier {
 public:
  static constexpr std::string_view kTag = "SetLearningRateModifier";
  static std::unique_ptr<Modifier> read(YamlFields* in, Place place);

  SetLearningRate(SetLearningRateOptions options, Place place)
      : Modifier(std::move(place)), options_(options) {}

  std::string_view tag() const override { return kTag; }
  Window window() const override { return {options_.start_epoch, std::nullopt}; }
  std::string summary() const override;
  void contribute(TimelineBuilder* builder) const override;

 private:
  SetLearningRateOptions options_;
};

}  // namespace lockstep::recal
