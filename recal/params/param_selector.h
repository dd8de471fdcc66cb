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

/// What a timeline needs to know of a parameter.
struct ParamInfo {
  std::string name;  ///< dotted: blocks.0.conv.weight
  bool prunable = false;
  int64_t num_weights = 0;
  std::vector<int64_t> sizes = {};  ///< [outputs, inputs, ...]; empty: unknown
};

/// The `params` or `submodules` key of a modifier: what it works on.
///
/// `__ALL__` means everything, `__ALL_PRUNABLE__` every prunable parameter. Otherwise a list (a
/// scalar is a list of one) of
///   name      of a layer or a parameter, dotted or slashed
///   re:REGEX  matches from the start of the full parameter name or of the layer name, in either
///             spelling; RE2 syntax, and two idioms for all names without X (name_pattern.h)
///
/// The resolve functions give indexes, ascending, each once. An entry that selects nothing goes to
/// `unmatched`, with its place and the nearest names: a fault, or a warning where the recipe says
/// `params_strict: false`. `frozen`: names of parameters that the network's code froze, which are
/// not among `params`; such an entry is told so.
class ParamSelector {
 public:
  /// Reads the required key; wrong forms become faults. `targets` is read as `params`, as newer
  /// recipes of SparseML write it.
  bool read(ConfigReader* in, std::string_view key);
  /// The same of a node that belongs to the key.
  bool read_node(ConfigReader* in, std::string_view key, const YAML::Node& node);

  /// The prunable parameters that are meant; a layer's name means its weight.
  std::vector<int64_t> resolve_prunable(const std::vector<ParamInfo>& params,
                                        Diagnostics* unmatched,
                                        const std::vector<std::string>& frozen = {}) const;
  /// All parameters that are meant; a layer's name means all of its parameters.
  std::vector<int64_t> resolve_any(const std::vector<ParamInfo>& params, Diagnostics* unmatched,
                                   const std::vector<std::string>& frozen = {}) const;
  /// The layers that are meant; a name means the layer and those below it (blocks: blocks.0.conv).
  std::vector<int64_t> resolve_layers(const std::vector<LayerInfo>& layers,
                                      Diagnostics* unmatched) const;

  /// True for __ALL__ and __ALL_PRUNABLE__.
  bool means_all() const { return all_ != All::kNo; }
  /// As written: __ALL__, or [a, re:b].
  std::string text() const;

 private:
  enum class All { kNo, kEverything, kPrunable };
  struct Entry {
    NamePattern pattern;
    SourceLocation location;
  };

  bool read_list(ConfigReader* in, std::string_view key, const YAML::Node& list);
  bool add(ConfigReader* in, std::string_view key, const YAML::Node& node);
  /// Indexes below n for which `is_candidate` holds and all or some entry selects them.
  std::vector<int64_t> select(
      size_t n, const std::function<bool(size_t)>& is_candidate,
      const std::function<bool(const NamePattern&, size_t)>& is_meant,
      const std::function<std::string(const NamePattern&)>& no_match_message,
      Diagnostics* unmatched) const;

  All all_ = All::kNo;
  std::vector<Entry> entries_;
};

}  // namespace lockstep::recal
