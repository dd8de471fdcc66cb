#pragma once

#include <memory>

#include "base/tensors/param_group.h"
#include "base/yaml/yaml_fields.h"
#include "recal/timeline/modifier.h"
#include "recal/params/param_groups.h"

namespace lockstep::recal {

struct SetWeightDecayOptions {
  std::optional<Moment> start;
  double weight_decay = 0;        ///< L2
  bool start_is_default = false;  ///< the recipe names none
  ParamGroups groups{{kWeightGroup}};
};

/// Sets the weight decay once, at its start; it stays until another modifier writes it.
class SetWeightDecay final : public Modifier {
 public:
  static constexpr std::string_view kTag = "SetWeightDecayModifier";
  static std::unique_ptr<Modifier> read(YamlFields* in, Place place);

  SetWeightDecay(SetWeightDecayOptions options, std::string tag, Place place)
      : Modifier(std::move(tag), std::move(place)), options_(options) {}

  Window window() const override { return {options_.start, std::nullopt}; }
  void place_in(StageSpan* stage) override { stage->place(&options_.start); }
  std::string summary() const override;
  void contribute(TimelineBuilder* builder) const override;

 private:
  SetWeightDecayOptions options_;
};

}  // namespace lockstep::recal
