#pragma once

#include <string>

namespace lockstep::recal {

/// A recipe to begin with: the usual values, each key with a comment. What is rarer stands there as
/// a comment that may be made text by removing its "# ".
std::string recipe_template();

}  // namespace lockstep::recal
