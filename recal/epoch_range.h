#pragma once

#include <memory>

#include "recal/modifier.h"

namespace lockstep::recal {

struct EpochRangeOptions {
  Decimal start_epoch;
  Decimal end_epoch;  ///< exclusive
};

/// Says how long to train. It is no hard limit: a later end or earlier start of another modifier
/// wins.
class EpochRange final : public Modifier {
 public:
  static constexpr std::string_view kTag = "EpochRangeModifier";
  static std::unique_ptr<Modifier> read(YamlFields* in, Place place);

  EpochRange(EpochRangeOptions options, Place place)
      : Modifier(std::move(place)), options_(options) {}

  std::string_view tag() const override { return kTag; }
  Window window() const override { return {options_.start_epoch, options_.end_epoch}; }
  std::string summary() const override;
  void contribute(TimelineBuilder* builder) const override;

 private:
  EpochRangeOptions options_;
};

}  // namespace lockstep::recal
