#pragma once

#include <string>

#include "recal/timeline/timeline.h"

namespace lockstep::recal {

/// The timeline as an SVG drawing of its own: one bar a modifier, below it over epochs the learning
/// rate and, where the recipe changes them, target sparsity, weight decay, and the numbers of
/// trained parameters and quantized layers, with a dot at each event. Well-formed XML, no scripts,
/// no outside references. `title` stands on top.
std::string plan_svg(const Timeline& timeline, const std::string& title);

}  // namespace lockstep::recal
