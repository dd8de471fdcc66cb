#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/named_table.h"
#include "recal/modifiers/modifiers.h"

/// Table of the modifiers that a recipe may hold.
namespace lockstep::recal {

/// One row. To add a modifier: a class derived from Modifier, a reader of its keys such as those of
/// modifiers.h, and
///
///   modifier_kinds().add({.name = "MyModifier", .read = read_my});
struct ModifierKind {
  std::string name;  ///< the tag without its '!'; ends in Modifier
  std::function<Modifiers(ConfigReader* in, const SourceLocation& location)> read;
};

/// The table; Lockstep's own modifiers are its first rows.
NamedTable<ModifierKind>& modifier_kinds();

/// Reads one item of a `modifiers:` list: `- !NameModifier {...}`. None if its tag names no
/// modifier. Every fault goes to `faults`.
Modifiers read_modifier(const YAML::Node& item, const YamlDocument& document, Diagnostics* faults);

/// The same of an entry of a `modifiers:` map: `NameModifier: {...}`.
Modifiers read_named_modifier(const YAML::Node& name, const YAML::Node& body,
                              const YamlDocument& document, Diagnostics* faults);

/// True for what is written like the name of a modifier, known or not.
bool is_modifier_name(std::string_view text);

}  // namespace lockstep::recal
