#pragma once

#include <string>
#include <vector>

#include "tests/recal/recipes.h"

namespace lockstep::tests {

inline std::vector<std::string> tags_of(const recal::Recipe& recipe) {
  std::vector<std::string> tags;
  for (const auto& modifier : recipe.modifiers()) tags.emplace_back(modifier->tag());
  return tags;
}

/// A recipe whose last line is `end_epoch: VALUE`, behind these top-level lines.
inline std::string with_end(const std::string& top, const std::string& value) {
  return "version: 1.0.0\n" + top +
         "modifiers:\n  - !EpochRangeModifier\n    start_epoch: 0\n    end_epoch: " + value + "\n";
}
/// The end of the run that such a recipe gives.
inline std::string end_of(const std::string& top, const std::string& value) {
  const recal::Recipe recipe = recal::good_recipe(with_end(top, value));
  return recipe.empty() ? "" : recipe.modifiers()[0]->window().end->text();
}

}  // namespace lockstep::tests
