#pragma once

#include <memory>
#include <string>
#include <vector>

#include "recal/recipe/recipe_outline.h"
#include "recal/timeline/modifier.h"

namespace lockstep::recal {

/// Reads the modifiers of a recipe's stages, in the file's order. Each stage starts at the last end
/// of the previous one. Moments in a stage count from its start, and -1 means its start or end. A
/// window without bounds is the whole stage. The last stage ends with the run. The resulting places
/// go to `notes`. A stage without an end is a fault, except for the last one.
std::vector<std::shared_ptr<const Modifier>> read_stages(const RecipeOutline& outline,
                                                         const YamlDocument& document,
                                                         std::vector<std::string>* notes,
                                                         Diagnostics* faults);

}  // namespace lockstep::recal
