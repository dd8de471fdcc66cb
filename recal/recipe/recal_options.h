#pragma once

#include <string>

#include "base/yaml/config_reader.h"
#include "recal/timeline/recipe.h"

namespace lockstep::recal {

/// Reads the recipe that the run file names or contains: `recipe: FILE` or an inlined `modifiers:`
/// list. At most one may be given; without both the recipe is empty. FILE is searched relative to
/// the working directory, then to the run file's folder. `recipe_stage: NAME` selects one stage of
/// the file. `in` is the run file's top level. A missing file is a fault at its key.
Recipe read_recipe(ConfigReader* in);

}  // namespace lockstep::recal
