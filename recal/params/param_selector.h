#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensors/layer_info.h"
#include "base/yaml/config_reader.h"
#include "base/yaml/source_location.h"
#include "recal/params/name_pattern.h"

namespace lockstep::recal {

/// Properties of a parameter that a timeline needs.
struct ParamInfo {
  std::string name;  ///< dotted: blocks.0.conv.weight
  bool prunable = false;
  int64_t num_weights = 0;
  std::vector<int64_t> sizes = {};  ///< [outputs, inputs, ...]; empty: unknown
};

/// Value of a modifier's `params` or `submodules` key: the parameters or layers it works on.
///
/// `__ALL__` selects everything, `__ALL_PRUNABLE__` every prunable parameter. Otherwise the value
/// is a list (a scalar is a list of one) of
///   name      of a layer or a parameter, dotted or slashed
///   re:REGEX  matches from the start of the full parameter name or of the layer name, in either
///             spelling; RE2 syntax, and two idioms for all names without X (name_pattern.h)
///
/// The resolve functions return indexes, ascending and unique. An entry that selects nothing goes
/// to `unmatched`, with its place and the nearest names. The caller makes it a fault, or a warning
/// with `params_strict: false`. `frozen`: names of parameters that the network's code froze, which
/// are not among `params`; the message for such an entry says so.
class ParamSelector {
 public:
  /// Reads the required key; wrong forms become faults. If key is `params`, also accepts `targets`,
  /// as in newer SparseML recipes.
  bool read(ConfigReader* in, std::string_view key);
  /// Reads the value from a node that belongs to the key.
  bool read_node(ConfigReader* in, std::string_view key, const YAML::Node& node);

  /// Selected prunable parameters. A layer's name selects its weight.
  std::vector<int64_t> resolve_prunable(const std::vector<ParamInfo>& params,
                                        Diagnostics* unmatched,
                                        const std::vector<std::string>& frozen = {}) const;
  /// Selected parameters of any kind. A layer's name selects all of its parameters.
  std::vector<int64_t> resolve_any(const std::vector<ParamInfo>& params, Diagnostics* unmatched,
                                   const std::vector<std::string>& frozen = {}) const;
  /// Selected layers. A name selects the layer and all layers below it (blocks: blocks.0.conv).
  std::vector<int64_t> resolve_layers(const std::vector<LayerInfo>& layers,
                                      Diagnostics* unmatched) const;

  /// True for __ALL__ and __ALL_PRUNABLE__.
  bool means_all() const { return all_ != All::kNo; }
  /// Text as written: __ALL__, or [a, re:b].
  std::string text() const;

 private:
  enum class All { kNo, kEverything, kPrunable };
  struct Entry {
    NamePattern pattern;
    SourceLocation location;
  };

  bool read_list(ConfigReader* in, std::string_view key, const YAML::Node& list);
  bool add(ConfigReader* in, std::string_view key, const YAML::Node& node);
  /// Returns the candidate indexes below n that a word for all or some entry selects.
  std::vector<int64_t> select(
      size_t n, const std::function<bool(size_t)>& is_candidate,
      const std::function<bool(const NamePattern&, size_t)>& is_meant,
      const std::function<std::string(const NamePattern&)>& no_match_message,
      Diagnostics* unmatched) const;

  All all_ = All::kNo;
  std::vector<Entry> entries_;
};

}  // namespace lockstep::recal
