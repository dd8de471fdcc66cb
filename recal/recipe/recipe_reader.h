#pragma once

#include <cstdint>
#include <string>

#include "base/yaml/yaml_document.h"
#include "recal/timeline/recipe.h"

/// Readers of recipes. Forms: a YAML file, the YAML front matter of a Markdown file
/// (recal/recipe/front_matter.h), or the `modifiers:` list of a run file. In a file, every
/// top-level list whose name holds `modifiers` is taken; other top-level values are variables for
/// eval(...). A file may hold stages instead, which are maps of such lists: they run one after
/// another, each after the last end of the one before, or one of them by its name. Grammar and
/// keys: docs/recipe.md.
///
/// They put every fault of the text into `faults` in one pass; the recipe may only be used if there
/// is none.
namespace lockstep::recal {

/// Most modifiers of one recipe, and most re:patterns in it.
inline constexpr int64_t kMaxRecipeModifiers = 1000;
inline constexpr int64_t kMaxRecipePatterns = 1000;

/// A file of its own; `stage`: only this one, empty: all. A missing file throws
/// Error(kInputMissing).
Recipe load_recipe(const std::string& path, Diagnostics* faults, const std::string& stage = "");
Recipe parse_recipe(const std::string& file, const std::string& text, Diagnostics* faults,
                    const std::string& stage = "");
/// True if the file is a recipe and no run file. Errors as load_recipe(); a file that cannot be
/// read as either is none.
bool is_recipe(const std::string& path);
/// The `modifiers:` list of a run file; eval(...) may stand in it, but has no variables.
Recipe recipe_of_modifiers(const YAML::Node& list, const YamlDocument& document,
                           Diagnostics* faults);

}  // namespace lockstep::recal
