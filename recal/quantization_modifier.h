#pragma once

#include <memory>
#include <optional>

#include "base/yaml_fields.h"
#include "recal/modifier.h"
#include "recal/param_selector.h"

namespace lockstep::recal {

struct QuantizationOptions {
  std::optional<Moment> start;
  std::optional<ParamSelector> submodules;  ///< nothing: every layer that can be quantized
  std::optional<Moment> observers_off;      ///< ranges of activations stay from here on
  std::optional<Moment> batch_norm_frozen;  ///< running statistics stay from here on
  bool per_channel = true;                  ///< a scale per output channel of a weight
};

/// Computes with weights and inputs rounded to what int8 can hold, from its start on; it has no
/// end.
class QuantizationModifier final : public Modifier {
 public:
  static constexpr std::string_view kTag = "QuantizationModifier";
  static std::unique_ptr<Modifier> read(YamlFields* in, Place place);

  QuantizationModifier(QuantizationOptions options, std::string tag, Place place)
      : Modifier(std::move(tag), std::move(place)), options_(std::move(options)) {}

  Window window() const override { return {options_.start, std::nullopt}; }
  void place_in(StageSpan* stage) override;
  std::string summary() const override;
  void contribute(TimelineBuilder* builder) const override;

 private:
  QuantizationOptions options_;
};

}  // namespace lockstep::recal
