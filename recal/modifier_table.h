#pragma once

#include <memory>

#include "recal/modifier.h"

namespace lockstep::recal {

/// Reads one item of a `modifiers:` list. Null if its tag names no modifier; every fault goes to
/// `faults`.
std::unique_ptr<Modifier> read_modifier(const YAML::Node& item, const YamlDocument& document,
                                        Faults* faults);

}  // namespace lockstep::recal
