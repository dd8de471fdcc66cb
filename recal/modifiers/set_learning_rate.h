#pragma once

#include <memory>

#include "base/yaml/yaml_fields.h"
#include "recal/timeline/modifier.h"
#include "recal/timeline/timeline.h"

namespace lockstep::recal {

struct SetLearningRateOptions {
  std::optional<Moment> start;
  double learning_rate = 0;
  bool start_is_default = false;  ///< the recipe names none
  ParamGroups groups;
};

/// Sets the learning rate once, at its start; it stays until another modifier writes it.
class SetLearningRate final : public Modifier {
 public:
  static constexpr std::string_view kTag = "SetLearningRateModifier";
  static std::unique_ptr<Modifier> read(YamlFields* in, Place place);

  SetLearningRate(SetLearningRateOptions options, std::string tag, Place place)
      : Modifier(std::move(tag), std::move(place)), options_(options) {}

  Window window() const override { return {options_.start, std::nullopt}; }
  void place_in(StageSpan* stage) override { stage->place(&options_.start); }
  std::string summary() const override;
  void contribute(TimelineBuilder* builder) const override;

 private:
  SetLearningRateOptions options_;
};

}  // namespace lockstep::recal
