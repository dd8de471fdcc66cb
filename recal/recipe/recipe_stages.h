#pragma once

#include <memory>
#include <string>
#include <vector>

#include "recal/recipe/recipe_outline.h"
#include "recal/timeline/modifier.h"

namespace lockstep::recal {

/// Reads the modifiers of a recipe's stages, in the file's order, and places each stage behind the
/// last end of the one before: moments in a stage count from its start, -1 is its start or end, and
/// a window without bounds is the stage. The last stage lasts to the run's end. What was placed
/// where goes to `notes`; a stage that another follows and that names no end is a fault.
std::vector<std::shared_ptr<const Modifier>> read_stages(const RecipeOutline& outline,
                                                         const YamlDocument& document,
                                                         std::vector<std::string>* notes,
                                                         Diagnostics* faults);

}  // namespace lockstep::recal
