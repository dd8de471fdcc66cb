#pragma once

#include <cstdint>
#include <string>

#include "base/yaml/config_reader.h"
#include "base/yaml/yaml_document.h"
#include "recal/schedule/recipe.h"

/// Readers of recipes. A recipe is a YAML file, the front matter of a Markdown file, or the
/// `modifiers:` list of a run file. In a file, every top-level list whose name contains `modifiers`
/// is read; other top-level values are variables for eval(...). A file may instead contain stages,
/// which are maps of such lists. Stages run one after another, each after the last end of the
/// previous one, or one alone by its name. Grammar and keys: docs/recipe.md.
///
/// All faults of the text go to `faults` in one pass. The recipe may only be used if there is no
/// fault.
namespace lockstep::recal {

/// Limits of one recipe: number of modifiers and number of re:patterns.
inline constexpr int64_t kMaxRecipeModifiers = 1000;
inline constexpr int64_t kMaxRecipePatterns = 1000;

/// Reads a recipe file. stage: the only stage to read; empty: all. Throws Error(kInputMissing) if
/// the file does not exist.
Recipe load_recipe(const std::string& path, Diagnostics* faults, const std::string& stage = "");
Recipe parse_recipe(const std::string& file, const std::string& text, Diagnostics* faults,
                    const std::string& stage = "");
/// True if the file is a recipe and not a run file. Throws as load_recipe(). A file that can be
/// read as neither is not a recipe.
bool is_recipe(const std::string& path);
/// Reads the `modifiers:` list of a run file. It may contain eval(...), but has no variables.
Recipe recipe_of_modifiers(const YAML::Node& list, const YamlDocument& document,
                           Diagnostics* faults);

/// Reads the recipe that the run file names or contains: `recipe: FILE` or an inlined `modifiers:`
/// list. At most one may be given; without both the recipe is empty. FILE is searched relative to
/// the working directory, then to the run file's folder. `recipe_stage: NAME` selects one stage of
/// the file. `in` is the run file's top level. A missing file is a fault at its key.
Recipe read_recipe(ConfigReader* in);

}  // namespace lockstep::recal
