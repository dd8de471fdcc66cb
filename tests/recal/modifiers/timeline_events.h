#pragma once

#include <string>
#include <vector>

#include "recal/schedule/timeline_views.h"
#include "tests/recal/recipes.h"

namespace lockstep::tests {

/// "step kind value: names" of each action.
inline std::vector<std::string> events(const recal::Timeline& timeline) {
  std::vector<std::string> lines;
  for (const recal::Action& action : timeline.actions())
    lines.push_back(std::to_string(action.step) + " " + recal::describe(timeline, action));
  return lines;
}
inline std::vector<std::string> events(const std::vector<std::string>& items) {
  return events(recal::compiled(recal::recipe_of(items), 10));
}

}  // namespace lockstep::tests
