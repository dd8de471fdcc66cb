#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/yaml_document.h"

namespace lockstep::recal {

/// The top level of a recipe's file, sorted by what its entries are; each in the file's order.
struct RecipeOutline {
  struct Entry {
    std::string name;
    YAML::Node node;
    YAML::Node key;  ///< where the name stands
  };
  std::vector<Entry> lists;      ///< lists of modifiers
  std::vector<Entry> variables;  ///< scalars, and lists of scalars for aliases to repeat
};

/// True for modifiers, pruning_modifiers, ...: what holds modifiers.
bool names_modifiers(std::string_view key);

/// Reads the top level, `version` included; what is wrong there becomes a fault. `version` may be
/// missing in front matter and beside lists of other names than `modifiers`.
RecipeOutline read_outline(const YamlDocument& document, bool is_front_matter, Faults* faults);

/// The same of a document of which only the list of this name is a recipe's.
RecipeOutline outline_of_list(const std::string& name, const YAML::Node& list,
                              const YamlDocument& document);

/// A fault, and false, unless the entry is a list.
bool check_is_list(const RecipeOutline::Entry& entry, const YamlDocument& document, Faults* faults);

}  // namespace lockstep::recal
