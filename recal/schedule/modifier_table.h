#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/named_table.h"
#include "base/yaml/config_reader.h"
#include "recal/schedule/recipe.h"

/// Table of the modifiers that a recipe may contain.
namespace lockstep::recal {

/// Modifiers made from one entry: usually one, several if the entry has a target for each of
/// several parameter sets.
using Modifiers = std::vector<std::unique_ptr<Modifier>>;

/// Modifier with the options that its reader fills. `Options` has a member `window`.
template <typename Options>
class ModifierWith : public Modifier {
 public:
  ModifierWith(Options options, std::string tag, SourceLocation location)
      : Modifier(std::move(tag), std::move(location)), options_(std::move(options)) {}

  Window window() const override { return options_.window; }
  void place_in(StageSpan* stage) override { stage->place(&options_.window); }

 protected:
  Options options_;
};

/// Returns a list with one modifier of type T.
template <typename T, typename Options>
Modifiers one_modifier(Options options, const ConfigReader& in, const SourceLocation& location) {
  Modifiers one;
  one.push_back(std::make_unique<T>(std::move(options), in.path(), location));
  return one;
}

/// Row of the table. A new modifier needs a class derived from Modifier, a reader of its keys, and
///
///   modifier_kinds().add({.name = "MyModifier", .read = read_my});
struct ModifierKind {
  std::string name;  ///< the tag without its '!'; ends in Modifier
  /// Reads the keys of one entry of a recipe, which is at `location`. Faults go to the diagnostics
  /// of `in`.
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
