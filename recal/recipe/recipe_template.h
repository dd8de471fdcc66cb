#pragma once

#include <string>

namespace lockstep::recal {

/// Returns a commented recipe with the usual values, as a starting point. Rarer keys are commented
/// out; removing "# " enables them.
std::string recipe_template();

}  // namespace lockstep::recal
