#pragma once

#include <memory>
#include <optional>

#include "base/yaml/yaml_fields.h"
#include "recal/timeline/modifier.h"
#include "recal/modifiers/rate_kwargs.h"
#include "recal/timeline/timeline.h"

namespace lockstep::recal {

struct LearningRateOptions {
  Window window;
  RateClass rate;
  std::optional<double> init_lr;  ///< nothing: the rate in force at the start
  bool end_is_default = false;    ///< the recipe names none
  ParamGroups groups;
};

/// Multiplies the learning rate by gamma at set epochs, beginning with init_lr at the start, or
/// lets it fall along a cosine again and again. Periods count from the start, milestones are
/// absolute. After the end the last rate stays.
class LearningRate final : public Modifier {
 public:
  static constexpr std::string_view kTag = "LearningRateModifier";
  static std::unique_ptr<Modifier> read(YamlFields* in, Place place);

  LearningRate(LearningRateOptions options, std::string tag, Place place)
      : Modifier(std::move(tag), std::move(place)), options_(std::move(options)) {}

  Window window() const override { return options_.window; }
  void place_in(StageSpan* stage) override;
  std::string summary() const override;
  void contribute(TimelineBuilder* builder) const override;

 private:
  void add(TimelineBuilder* builder, StepRange steps, double base, const ParamGroups& groups) const;
  void add_cycles(TimelineBuilder* builder, StepRange steps, double base,
                  const ParamGroups& groups) const;
  void add_periods(TimelineBuilder* builder, StepRange steps, double base,
                   const ParamGroups& groups) const;
  void check_milestones(TimelineBuilder* builder, StepRange steps) const;
  void add_milestones(TimelineBuilder* builder, StepRange steps, double base,
                      const ParamGroups& groups) const;

  LearningRateOptions options_;
};

}  // namespace lockstep::recal
