#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/named_table.h"
#include "recal/modifiers/modifiers.h"

/// Table of the modifiers that a recipe may contain.
namespace lockstep::recal {

/// Row of the table. A new modifier needs a class derived from Modifier, a reader of its keys (see
/// modifiers.h), and
///
///   modifier_kinds().add({.name = "MyModifier", .read = read_my});
struct ModifierKind {
  std::string name;  ///< the tag without its '!'; ends in Modifier
  std::function<Modifiers(ConfigReader* in, const SourceLocation& location)> read;
};

/// Returns the table. Lockstep's own modifiers are its first rows.
NamedTable<ModifierKind>& modifier_kinds();

/// Reads one item of a `modifiers:` list, `- !NameModifier {...}`. Returns no modifier if the tag
/// is unknown. Every fault goes to `faults`.
Modifiers read_modifier(const YAML::Node& item, const YamlDocument& document, Diagnostics* faults);

/// Reads one entry of a `modifiers:` map, `NameModifier: {...}`. Otherwise like read_modifier().
Modifiers read_named_modifier(const YAML::Node& name, const YAML::Node& body,
                              const YamlDocument& document, Diagnostics* faults);

/// True if the text has the form of a modifier's name, known or not.
bool is_modifier_name(std::string_view text);

}  // namespace lockstep::recal
