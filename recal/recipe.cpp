#include "recal/recipe.h"

#include <algorithm>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "base/digest.h"
#include "base/yaml_fields.h"
#include "recal/front_matter.h"
#include "recal/modifier_table.h"
#include "recal/recipe_outline.h"
#include "recal/recipe_variables.h"

namespace lockstep::recal {
namespace {

/// Patterns in a list of modifiers, those of aliases counted at each use.
int64_t count_patterns(const YAML::Node& node) {
  int64_t count = node.IsScalar() && node.Scalar().starts_with("re:") ? 1 : 0;
  if (node.IsSequence())
    for (const YAML::Node& item : node) count += count_patterns(item);
  if (node.IsMap())
    for (const auto& pair : node) count += count_patterns(pair.second);
  return count;
}

/// False, with a fault, if compiling the recipe would take long.
bool size_is_fine(const std::vector<RecipeOutline::Entry>& lists, const YamlDocument& document,
                  Faults* faults) {
  int64_t num_modifiers = 0;
  int64_t num_patterns = 0;
  for (const auto& [name, list, key] : lists) {
    num_modifiers += static_cast<int64_t>(list.size());
    num_patterns += count_patterns(list);
    if (num_modifiers <= Recipe::kMaxModifiers && num_patterns <= Recipe::kMaxPatterns) continue;
    faults->add(document.fault_at(list, fmt::format("more than {} modifiers or {} re:patterns",
                                                    Recipe::kMaxModifiers, Recipe::kMaxPatterns)));
    return false;
  }
  return true;
}

}  // namespace

Recipe Recipe::load(const std::string& path, Faults* faults) {
  return parse(path, YamlDocument::read_text(path), faults);
}

Recipe Recipe::parse(const std::string& file, const std::string& text, Faults* faults) {
  const std::optional<TextPart> part = find_yaml(file, text, faults);
  if (!part) return {};
  YamlDocument document = YamlDocument::parse_part(file, text, *part, faults);
  if (document.root().IsNull()) return {};  // its fault is already there
  if (!document.root().IsMap()) {
    faults->add(document.fault_at(document.root(), "the file must be a map of keys"));
    return {};
  }
  const RecipeOutline outline = read_outline(document, part->begin > 0, faults);
  return from_outline(outline, &document, faults);
}

bool Recipe::is_recipe(const std::string& path) {
  const std::string text = YamlDocument::read_text(path);
  Faults ignored;
  const std::optional<TextPart> part = find_yaml(path, text, &ignored);
  if (!part || part->begin > 0) return true;  // no run file is Markdown
  const YamlDocument document = YamlDocument::parse_part(path, text, *part, &ignored);
  if (!document.root().IsMap() || document.root()["run"].IsDefined()) return false;
  return std::any_of(document.root().begin(), document.root().end(), [](const auto& pair) {
    return pair.first.IsScalar() && names_modifiers(pair.first.Scalar());
  });
}

Recipe Recipe::from_modifiers(const YAML::Node& list, const YamlDocument& document,
                              Faults* faults) {
  YamlDocument with_notes = document;
  return from_outline(outline_of_list("modifiers", list, document), &with_notes, faults);
}

Recipe Recipe::from_outline(const RecipeOutline& outline, YamlDocument* document, Faults* faults) {
  Recipe recipe;
  recipe.file_ = document->file();
  recipe.source_sha256_ = sha256_hex(document->text());
  RecipeVariables variables(document, faults);
  for (const auto& [name, value, key] : outline.variables) variables.add(name, value);
  variables.substitute_in_variables();
  for (const RecipeOutline::Entry& list : outline.lists) variables.substitute(list.node);

  Faults found;
  if (!size_is_fine(outline.lists, *document, faults)) return recipe;
  for (const RecipeOutline::Entry& list : outline.lists) {
    if (found.full()) break;
    if (!check_is_list(list, *document, &found)) continue;
    for (const YAML::Node& item : list.node) {
      std::shared_ptr<const Modifier> modifier = read_modifier(item, *document, &found);
      if (modifier) recipe.modifiers_.push_back(std::move(modifier));
    }
  }
  for (const Fault& fault : found.list())
    if (!variables.follows_from_failure(fault)) faults->add(fault);
  return recipe;
}

}  // namespace lockstep::recal
