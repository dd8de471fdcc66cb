#pragma once

#include <memory>
#include <string>

#include "base/yaml/yaml_fields.h"
#include "recal/timeline/modifier.h"
#include "recal/params/param_selector.h"

namespace lockstep::recal {

struct GradualParamOptions {
  ParamSelector params;
  double init_val = 0;
  double final_val = 0;
  Window window;
  Period update_frequency;
  std::string inter_func = "linear";  ///< recal/time/curve.h
  bool params_strict = true;
  ParamLogs logs = ParamLogs::kByDefault;
};

/// Sets every element of the named parameters again and again, from init_val at its start to
/// final_val at its end. Between two updates training may move them.
class GradualParam final : public Modifier {
 public:
  static constexpr std::string_view kTag = "GradualParamModifier";
  static std::unique_ptr<Modifier> read(YamlFields* in, Place place);

  GradualParam(GradualParamOptions options, std::string tag, Place place)
      : Modifier(std::move(tag), std::move(place)), options_(std::move(options)) {}

  Window window() const override { return options_.window; }
  void place_in(StageSpan* stage) override { stage->place(&options_.window); }
  std::string summary() const override;
  void contribute(TimelineBuilder* builder) const override;
  ParamLogs param_logs() const override { return options_.logs; }

 private:
  GradualParamOptions options_;
};

}  // namespace lockstep::recal
