#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensors/layer_info.h"
#include "base/yaml/config_reader.h"
#include "base/yaml/source_location.h"
#include "recal/params/name_pattern.h"
#include "recal/params/param_selector.h"

namespace lockstep::recal {

/// An entry of `ignore` or `targets`, or a key of `scheme_overrides`:
///
///   name      of a layer or of what holds it, dotted or slashed
///   re:REGEX  see NamePattern
///   class     of modules, as PyTorch names it: Linear, Conv1d, Conv2d or Conv3d; another one
///             (Embedding, SiLU) stands for modules that are never quantized
class LayerTarget {
 public:
  /// Diagnostics at the node where it is none of these.
  LayerTarget(const YAML::Node& node, std::string_view key, ConfigReader* in);

  const std::string& text() const { return pattern_.text(); }
  const SourceLocation& location() const { return location_; }
  /// True for a text that can only be the class of modules which are never quantized. A layer of
  /// that very name would still be meant.
  bool is_foreign_class() const;
  /// How narrowly it means this layer, whose weight has these sizes: 0 not at all, 1 by its class,
  /// more by its name, the longer the more.
  size_t match(const LayerInfo& layer, const std::vector<int64_t>& weight_sizes) const;
  /// True if the model has such a module: a layer, or what holds a parameter of another module.
  bool is_in(const std::vector<LayerInfo>& layers, const std::vector<ParamInfo>& params) const;

 private:
  NamePattern pattern_;
  SourceLocation location_;
};

/// Reads a list of them, or a lone one; undefined: none.
std::vector<LayerTarget> read_layer_targets(ConfigReader* in, std::string_view key);

}  // namespace lockstep::recal
