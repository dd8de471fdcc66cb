#pragma once

#include <memory>
#include <optional>

#include "base/yaml/yaml_fields.h"
#include "recal/timeline/modifier.h"
#include "recal/quantization/quantized_layers.h"

namespace lockstep::recal {

struct QuantizationOptions {
  std::optional<Moment> start;
  bool start_is_default = false;
  QuantizedLayers layers;
  std::optional<Moment> observers_off;      ///< ranges of activations stay from here on
  std::optional<Moment> batch_norm_frozen;  ///< running statistics stay from here on
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
