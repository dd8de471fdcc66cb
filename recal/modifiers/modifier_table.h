#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "recal/timeline/modifier.h"

namespace lockstep::recal {

/// Reads one item of a `modifiers:` list: `- !NameModifier {...}`. Usually one modifier; several
/// where it has a target for each of several sets of parameters; none if its tag names no modifier.
/// Every fault goes to `faults`.
std::vector<std::unique_ptr<Modifier>> read_modifier(const YAML::Node& item,
                                                     const YamlDocument& document,
                                                     Diagnostics* faults);

/// The same of an entry of a `modifiers:` map: `NameModifier: {...}`.
std::vector<std::unique_ptr<Modifier>> read_named_modifier(const YAML::Node& name,
                                                           const YAML::Node& body,
                                                           const YamlDocument& document,
                                                           Diagnostics* faults);

/// True for what is written like the name of a modifier, known or not.
bool is_modifier_name(std::string_view text);

}  // namespace lockstep::recal
