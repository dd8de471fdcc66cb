#pragma once

#include <string>

#include "base/yaml/config_reader.h"
#include "recal/timeline/recipe.h"

namespace lockstep::recal {

/// Reads how the run file names its recipe, and the recipe: `recipe: FILE` or an inlined
/// `modifiers:` list, at most one; an empty recipe if neither. FILE is tried as given (from the
/// working directory), then from the run file's folder. `recipe_stage: NAME` takes one stage of the
/// file. `in` is the run file's top level; a missing file is a fault at its key.
Recipe read_recipe(ConfigReader* in);

}  // namespace lockstep::recal
