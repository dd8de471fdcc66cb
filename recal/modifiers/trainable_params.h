#pragma once

#include <memory>

#include "base/yaml/yaml_fields.h"
#include "recal/timeline/modifier.h"
#include "recal/params/param_selector.h"

namespace lockstep::recal {

struct TrainableParamsOptions {
  ParamSelector params;
  bool trainable = true;
  bool exclusive = false;  ///< all other parameters are frozen; only where trainable
  Window window;           ///< open bounds: the run's
  bool params_strict = true;
  ParamLogs logs = ParamLogs::kByDefault;
};

/// Says whether the named parameters are trained. At its end they go back to what they were before.
class TrainableParams final : public Modifier {
 public:
  static constexpr std::string_view kTag = "TrainableParamsModifier";
  static std::unique_ptr<Modifier> read(YamlFields* in, Place place);

  TrainableParams(TrainableParamsOptions options, std::string tag, Place place)
      : Modifier(std::move(tag), std::move(place)), options_(std::move(options)) {}

  Window window() const override { return options_.window; }
  void place_in(StageSpan* stage) override { stage->place_open(&options_.window); }
  std::string summary() const override;
  void contribute(TimelineBuilder* builder) const override;
  ParamLogs param_logs() const override { return options_.logs; }

 private:
  TrainableParamsOptions options_;
};

}  // namespace lockstep::recal
