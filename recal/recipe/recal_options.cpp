#include "recal/recipe/recal_options.h"

#include <filesystem>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "base/error.h"
#include "recal/recipe/recipe_reader.h"

namespace lockstep::recal {
namespace {

Recipe load_named(ConfigReader* in, const std::string& name, const std::string& stage) {
  const std::filesystem::path beside =
      std::filesystem::path(in->document().file()).parent_path() / name;
  for (const std::filesystem::path& path : {std::filesystem::path(name), beside}) {
    // An unreadable path counts as missing, and the next one is tried.
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(path, ignored)) continue;
    try {
      return load_recipe(path.string(), in->faults(), stage);
    } catch (const Error& fault) {
      // Errors of the file become faults at the run file's key, next to its other faults.
      in->fault("recipe", fault.what());
      return {};
    }
  }
  in->fault("recipe",
            fmt::format("there is no recipe file '{}' (nor '{}')", name, beside.string()));
  return {};
}

}  // namespace

Recipe read_recipe(ConfigReader* in) {
  std::string name;
  const bool is_named = in->read("recipe", &name, "file with the recipe (docs/recipe.md)");
  std::string stage;
  const bool names_stage = in->read("recipe_stage", &stage,
                                    "one stage of the recipe, by its name, instead of all in turn");
  if (names_stage && stage.empty()) in->fault("recipe_stage", "'recipe_stage' must be a name");
  if (names_stage && !in->has("recipe"))
    in->fault("recipe_stage", "'recipe_stage' needs 'recipe': it names a stage of that file");
  const YAML::Node inlined =
      in->take("modifiers", "list of modifiers", "the recipe itself, instead of recipe");
  if (in->has("recipe") && inlined.IsDefined()) {
    in->fault("modifiers", "'recipe' and 'modifiers' are both given: keep one of them");
    return {};
  }
  if (is_named) return load_named(in, name, stage);
  return inlined.IsDefined() ? recipe_of_modifiers(inlined, in->document(), in->faults())
                             : Recipe();
}

}  // namespace lockstep::recal
