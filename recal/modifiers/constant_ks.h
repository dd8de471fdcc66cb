#pragma once

#include <memory>

#include "base/yaml/yaml_fields.h"
#include "recal/timeline/modifier.h"
#include "recal/params/param_selector.h"

namespace lockstep::recal {

struct ConstantKSOptions {
  ParamSelector params;
  Window window;  ///< open bounds: the run's
  bool params_strict = true;
  ParamLogs logs = ParamLogs::kByDefault;
};

/// Keeps the zeros that the named weights have: for a model that came pruned. Over parameters of a
/// gradual modifier listed before it, it starts where that one ends and keeps what it left.
class ConstantKS final : public Modifier {
 public:
  static constexpr std::string_view kTag = "ConstantKSModifier";
  static std::unique_ptr<Modifier> read(YamlFields* in, Place place);

  ConstantKS(ConstantKSOptions options, std::string tag, Place place)
      : Modifier(std::move(tag), std::move(place)), options_(std::move(options)) {}

  Window window() const override { return options_.window; }
  void place_in(StageSpan* stage) override { stage->place_open(&options_.window); }
  std::string summary() const override;
  void contribute(TimelineBuilder* builder) const override;
  ParamLogs param_logs() const override { return options_.logs; }

 private:
  ConstantKSOptions options_;
};

}  // namespace lockstep::recal
