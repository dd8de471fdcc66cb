#include "recal/params/param_groups.h"

#include <fmt/format.h>

namespace lockstep::recal {

std::string of_group(int group) {
  return group == kAllGroups ? "" : " of parameter group " + std::to_string(group);
}

int ParamGroups::first_unknown() const {
  for (const int number : numbers)
    if (number >= kNumParamGroups) return number;
  return -1;
}

bool ParamGroups::names_each_known() const {
  return static_cast<int>(numbers.size()) == kNumParamGroups && first_unknown() < 0;
}

std::string ParamGroups::text() const {
  if (all()) return "";
  if (numbers.size() == 1) return of_group(numbers.front());
  return fmt::format(" of parameter groups {}", fmt::join(numbers, ", "));
}

std::string known_param_groups() {
  return "0 (weights, which decay) and 1 (the rest: biases, normalisation)";
}

}  // namespace lockstep::recal
