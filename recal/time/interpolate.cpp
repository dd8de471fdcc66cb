#include "recal/time/interpolate.h"

#include <algorithm>
#include <cmath>

namespace lockstep::recal {

const std::vector<std::string>& interpolation_names() {
  static const std::vector<std::string> names{"cubic", "linear", "inverse_cubic"};
  return names;
}

double curve(std::string_view inter_func, double done) {
  const double left = 1.0 - std::clamp(done, 0.0, 1.0);
  // Unknown names cannot occur: read_choice() has checked them.
  if (inter_func == "linear") return 1.0 - left;
  if (inter_func == "inverse_cubic") return 1.0 - std::cbrt(left);
  return 1.0 - left * left * left;
}

}  // namespace lockstep::recal
