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

/// Which layers a QuantizationModifier quantizes, and how their weights are scaled: its keys
/// `submodules`, `ignore`, `weights`, `scheme`, `scheme_overrides`, `config_groups` and `strict`.
///
/// A layer is quantized if `submodules` has it (absent: all have it), `ignore` does not, and its
/// scheme says so: that of the group of `config_groups` which names it, or that of the key of
/// `scheme_overrides` which names it most narrowly (the longest name, then its class), or else
/// `scheme`. All quantized layers have the same strategy.
class QuantizedLayers {
 public:
  /// Reads the keys; wrong forms become faults.
  void read(ConfigReader* in);

  /// Indexes in TimelineInputs::layers, ascending; none without a model.
  struct Choice {
    std::vector<int64_t> layers;
    bool per_channel = true;
  };
  /// Diagnostics (to the builder) where a layer has a scheme that cannot be carried out, an entry
  /// names nothing, or no layer is left. Without a model: where one could have such a scheme.
  Choice choose(TimelineBuilder* builder) const;

  /// __ALL__, or [a, Linear], and what is left out: "__ALL__ except [head]".
  std::string text() const;
  /// Of weights, where no model tells which schemes there are.
  bool per_channel() const;

 private:
  struct Rule {
    std::vector<LayerTarget> targets;
    LayerScheme scheme;
  };

  void read_schemes(ConfigReader* in);
  void read_groups(ConfigReader* in);
  /// Null: the layer is not quantized.
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
