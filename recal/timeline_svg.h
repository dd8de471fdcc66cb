#pragma once

#include <string>

#include "recal/timeline.h"

namespace lockstep::recal {

/// The timeline as an SVG drawing of its own: one bar a modifier, below it learning rate and target
/// sparsity over epochs, with a dot at each event. Well-formed XML, no scripts, no outside
/// references. `title` stands on top.
std::string plan_svg(const Timeline& timeline, const std::string& title);

}  // namespace lockstep::recal
