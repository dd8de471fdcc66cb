#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::recal {

/// Fraction of the way from the first (0) to the last (1) value. done: fraction of the window, in
/// [0, 1].
///   linear         done
///   cubic          1 - (1 - done)^3        (Zhu & Gupta 2017, arXiv:1710.01878, eq. 1)
///   inverse_cubic  1 - (1 - done)^(1/3)
double curve(std::string_view inter_func, double done);

/// Names of the curves: cubic, linear, inverse_cubic.
const std::vector<std::string>& interpolation_names();

}  // namespace lockstep::recal
