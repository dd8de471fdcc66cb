#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/params.h"
#include "base/yaml_fields.h"
#include "recal/modifier.h"

namespace lockstep::recal {

/// What a timeline needs to know of a parameter.
struct ParamInfo {
  std::string name;  ///< dotted: blocks.0.conv.weight
  bool prunable = false;
  int64_t num_weights = 0;
};
std::vector<ParamInfo> param_infos(const ParamTable& params);

/// The `params` key of a modifier: which parameters it works on.
///
/// `__ALL__` and `__ALL_PRUNABLE__` mean every prunable parameter. Otherwise a list (a scalar is a
/// list of one) of
///   name      of a layer (its weight is meant) or of a parameter, dotted or slashed
///   re:REGEX  matches from the start of the full parameter name or of the layer name, in either
///   spelling; RE2 syntax
class ParamSelector {
 public:
  /// Reads the required key; wrong forms become faults.
  bool read(YamlFields* in, std::string_view key);

  /// Indexes of the prunable parameters that are meant, ascending, each once. An entry that matches
  /// none is a fault that names the nearest names.
  std::vector<int64_t> resolve_prunable(const std::vector<ParamInfo>& params, Faults* faults) const;

  /// As written: __ALL__, or [a, re:b].
  std::string text() const;

 private:
  struct Entry {
    std::string text;
    Place place;
  };
  bool add(const YAML::Node& node, const YamlDocument& document, Faults* faults);
  std::vector<int64_t> matches(const Entry& entry, const std::vector<ParamInfo>& params) const;

  bool all_ = false;
  std::vector<Entry> entries_;
};

}  // namespace lockstep::recal
