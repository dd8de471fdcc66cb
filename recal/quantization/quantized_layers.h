#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/yaml/config_reader.h"
#include "recal/params/param_selector.h"
#include "recal/quantization/layer_scheme.h"
#include "recal/quantization/layer_targets.h"

namespace lockstep::recal {

class TimelineBuilder;

/// Layers that a QuantizationModifier quantizes, and the scales of their weights. Keys:
/// `submodules`, `ignore`, `weights`, `scheme`, `scheme_overrides`, `config_groups` and `strict`.
///
/// A layer is quantized if `submodules` contains it (absent: all layers), `ignore` does not, and
/// its scheme quantizes. The scheme is that of the matching entry of `config_groups`. Without
/// groups it is that of the most specific key of `scheme_overrides`: the longest name, then the
/// class. Else it is `scheme`. All quantized layers must have the same strategy.
class QuantizedLayers {
 public:
  /// Reads the keys; wrong forms become faults.
  void read(ConfigReader* in);

  /// Indexes in TimelineInputs::layers, ascending; empty without a model.
  struct Choice {
    std::vector<int64_t> layers;
    bool per_channel = true;
  };
  /// Chooses the layers. Adds faults to the builder for a layer with an unsupported scheme and for
  /// an entry without a match. It is also a fault if no layer remains. Without a model: if a layer
  /// could have such a scheme.
  Choice choose(TimelineBuilder* builder) const;

  /// Text of the selection: __ALL__ or [a, Linear], with exceptions: "__ALL__ except [head]".
  std::string text() const;
  /// True if weights have one scale per output channel, as far as is known without a model.
  bool per_channel() const;

 private:
  struct Rule {
    std::vector<LayerTarget> targets;
    LayerScheme scheme;
  };

  void read_schemes(ConfigReader* in);
  void read_groups(ConfigReader* in);
  /// Returns the scheme of a layer, or null if it is not quantized.
  const LayerScheme* scheme_of(const LayerInfo& layer,
                               const std::vector<int64_t>& weight_sizes) const;
  void check_without_model(TimelineBuilder* builder) const;
  void check_targets(TimelineBuilder* builder) const;
  std::vector<const LayerTarget*> all_targets() const;

  std::optional<ParamSelector> submodules_;
  std::vector<LayerTarget> ignore_;
  LayerScheme scheme_;  ///< of layers that no rule names; not used with groups
  std::vector<Rule> rules_;
  bool has_groups_ = false;
  bool strict_ = true;
};

}  // namespace lockstep::recal
