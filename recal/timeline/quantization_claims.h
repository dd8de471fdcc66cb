#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/tensors/layer_info.h"
#include "base/yaml/yaml_document.h"
#include "recal/timeline/modifier.h"
#include "recal/timeline/pruning_claims.h"

namespace lockstep::recal {

/// Claim of one QuantizationModifier. Observers and batch normalisation are switched for the whole
/// model.
struct QuantizationClaim {
  const Modifier* modifier = nullptr;
  int64_t first_step = 0;
  std::vector<int64_t> layers;  ///< ascending indexes in TimelineInputs::layers
  bool per_channel = true;
  std::optional<int64_t> observers_off, batch_norm_frozen;  ///< steps
};

/// Conflict check of the modifiers that quantize layers.
class QuantizationClaims {
 public:
  /// References `layers`, which must outlive this object.
  explicit QuantizationClaims(const std::vector<LayerInfo>& layers) : layers_(layers) {}

  /// Adds a claim. Adds a fault at the modifier's place if another one quantizes one of the layers
  /// or has other settings. The modifier must outlive this object.
  void add(QuantizationClaim claim, Diagnostics* faults);

  /// Compares the claims with those of pruning. Call it after all pruning modifiers have claimed.
  /// Adds a fault if a quantized weight's mask is released before the run's end (`total_steps`, if
  /// known). Returns warnings: (modifier, text).
  struct Warning {
    const Modifier* modifier;
    std::string text;
  };
  std::vector<Warning> check_pruning(const PruningClaims& pruning,
                                     std::optional<int64_t> total_steps, Diagnostics* faults) const;

  bool per_channel() const { return claims_.empty() || claims_.front().per_channel; }

 private:
  bool refuse_second(const QuantizationClaim& claim, Diagnostics* faults) const;

  const std::vector<LayerInfo>& layers_;
  std::vector<QuantizationClaim> claims_;
};

}  // namespace lockstep::recal
