#pragma once

#include <memory>

#include "base/yaml/yaml_fields.h"
#include "recal/timeline/modifier.h"
#include "recal/params/param_selector.h"

namespace lockstep::recal {

struct SetParamOptions {
  ParamSelector params;
  double val = 0;
  std::optional<Moment> start;
  bool start_is_default = false;  ///< the recipe names none
  bool params_strict = true;
  ParamLogs logs = ParamLogs::kByDefault;
};

/// Sets every element of the named parameters once, at its start; training goes on from there.
class SetParam final : public Modifier {
 public:
  static constexpr std::string_view kTag = "SetParamModifier";
  static std::unique_ptr<Modifier> read(YamlFields* in, Place place);

  SetParam(SetParamOptions options, std::string tag, Place place)
      : Modifier(std::move(tag), std::move(place)), options_(std::move(options)) {}

  Window window() const override { return {options_.start, std::nullopt}; }
  void place_in(StageSpan* stage) override { stage->place(&options_.start); }
  std::string summary() const override;
  void contribute(TimelineBuilder* builder) const override;
  ParamLogs param_logs() const override { return options_.logs; }

 private:
  SetParamOptions options_;
};

}  // namespace lockstep::recal
