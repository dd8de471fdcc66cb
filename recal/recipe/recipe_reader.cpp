#include "recal/recipe/recipe_reader.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "base/digest.h"
#include "base/yaml/config_reader.h"
#include "recal/recipe/expression.h"
#include "recal/recipe/front_matter.h"
#include "recal/recipe/recipe_outline.h"
#include "recal/recipe/recipe_stages.h"
#include "recal/recipe/recipe_variables.h"

namespace lockstep::recal {
// Steps: find the YAML, sort its top level (outline), choose stages, evaluate eval(...), read the
// modifiers. All steps report to one list of faults.
namespace {

/// Counts the patterns in a list of modifiers. A pattern in an alias counts at each use.
int64_t count_patterns(const YAML::Node& node) {
  int64_t count = node.IsScalar() && node.Scalar().starts_with("re:") ? 1 : 0;
  if (node.IsSequence())
    for (const YAML::Node& item : node) count += count_patterns(item);
  if (node.IsMap())
    for (const auto& pair : node) count += count_patterns(pair.second);
  return count;
}

/// Returns false, with a fault, if the recipe is so large that compiling it would take long.
bool size_is_fine(const RecipeOutline& outline, const YamlDocument& document, Diagnostics* faults) {
  int64_t num_modifiers = 0;
  int64_t num_patterns = 0;
  for (const RecipeOutline::Stage& stage : outline.stages)
    for (const auto& [name, list, key] : stage.lists) {
      num_modifiers += static_cast<int64_t>(list.size());
      num_patterns += count_patterns(list);
      if (num_modifiers <= kMaxRecipeModifiers && num_patterns <= kMaxRecipePatterns) continue;
      faults->add(document.fault_at(list, fmt::format("more than {} modifiers or {} re:patterns",
                                                      kMaxRecipeModifiers, kMaxRecipePatterns)));
      return false;
    }
  return true;
}

/// Limit of the bytes that separate_stages() parses again.
constexpr size_t kMaxReadAnew = size_t{16} << 20;

using Places = std::set<std::pair<int, int>>;  // line and column, from 0

/// Adds the places of all eval(...) in `node` and below it.
void add_expressions(const YAML::Node& node, Places* places) {
  if (node.IsScalar() && is_expression(node.Scalar()))
    places->emplace(node.Mark().line, node.Mark().column);
  if (node.IsSequence())
    for (const YAML::Node& item : node) add_expressions(item, places);
  if (node.IsMap())
    for (const auto& pair : node) add_expressions(pair.second, places);
}

Places expressions_of(const RecipeOutline::Stage& stage) {
  Places places;
  for (const RecipeOutline::Entry& list : stage.lists) add_expressions(list.node, &places);
  for (const RecipeOutline::Entry& value : stage.variables) add_expressions(value.node, &places);
  return places;
}

/// Gives a stage its own nodes if an alias shares an eval(...) with an earlier stage. In one tree
/// both would get the value of the first stage. Parses the text again, because YAML::Clone() would
/// lose the places for faults.
void separate_stages(const YamlDocument& document, const TextPart& part, RecipeOutline* outline,
                     Diagnostics* faults) {
  Places seen;
  size_t num_bytes = 0;
  for (RecipeOutline::Stage& stage : outline->stages) {
    const Places own = expressions_of(stage);
    const bool is_shared = std::any_of(own.begin(), own.end(),
                                       [&](const auto& place) { return seen.contains(place); });
    // Only after the test: a stage does not share with itself.
    seen.insert(own.begin(), own.end());
    if (!is_shared) continue;
    num_bytes += document.text().size();
    if (num_bytes > kMaxReadAnew) {
      faults->add(document.fault_at(stage.key,
                                    "too many stages of this long file have eval(...) of others "
                                    "by aliases: write their lists out"));
      return;
    }
    Diagnostics known;  // reported by the first parse
    const YamlDocument anew =
        YamlDocument::parse_part(document.file(), document.text(), part, &known);
    RecipeOutline copy = read_outline(anew, &known);
    const auto same = std::find_if(copy.stages.begin(), copy.stages.end(),
                                   [&](const auto& other) { return other.name == stage.name; });
    if (same == copy.stages.end()) continue;
    stage.lists.swap(same->lists);
    stage.variables.swap(same->variables);
    stage.top_level.swap(copy.variables);
  }
}

/// Evaluates every eval(...): first those of the top level, then those of each stage, whose own
/// variables have priority. Returns the evaluators, which know the failed places.
std::vector<RecipeVariables> substitute(const RecipeOutline& outline, YamlDocument* document,
                                        Diagnostics* faults) {
  std::vector<RecipeVariables> all;
  RecipeVariables& shared = all.emplace_back(document, faults);
  for (const auto& [name, value, key] : outline.variables) shared.add(name, value);
  shared.substitute_in_variables();
  const RecipeVariables top_level = shared;
  for (const RecipeOutline::Stage& stage : outline.stages) {
    RecipeVariables& own = all.emplace_back(top_level);
    for (const auto& [name, value, key] : stage.top_level) own.add_over(name, value);
    if (!stage.top_level.empty()) own.substitute_in_variables();
    for (const auto& [name, value, key] : stage.variables) own.add_over(name, value);
    if (!stage.variables.empty()) own.substitute_in_variables();
    for (const RecipeOutline::Entry& list : stage.lists) own.substitute(list.node);
  }
  return all;
}

Recipe from_outline(const RecipeOutline& outline, YamlDocument* document, Diagnostics* faults) {
  std::vector<std::string> notes = outline.notes;
  std::vector<std::shared_ptr<const Modifier>> modifiers;
  const std::vector<RecipeVariables> variables = substitute(outline, document, faults);
  if (size_is_fine(outline, *document, faults)) {
    Diagnostics found;
    modifiers = read_stages(outline, *document, &notes, &found);
    // A failed eval(...) leaves its text in place. A second fault about that text is noise.
    for (const Fault& fault : found.list())
      if (std::none_of(variables.begin(), variables.end(), [&](const RecipeVariables& evaluated) {
            return evaluated.follows_from_failure(fault);
          }))
        faults->add(fault);
  }
  return {document->file(), sha256_hex(document->text()), std::move(modifiers), std::move(notes)};
}

}  // namespace

Recipe load_recipe(const std::string& path, Diagnostics* faults, const std::string& stage) {
  return parse_recipe(path, YamlDocument::read_text(path), faults, stage);
}

Recipe parse_recipe(const std::string& file, const std::string& text, Diagnostics* faults,
                    const std::string& stage) {
  const std::optional<TextPart> part = find_yaml(file, text, faults);
  if (!part) return {};
  YamlDocument document = YamlDocument::parse_part(file, text, *part, faults);
  if (document.root().IsNull()) return {};  // already a fault
  if (!document.root().IsMap()) {
    faults->add(document.fault_at(document.root(), "the file must be a map of keys"));
    return {};
  }
  RecipeOutline outline = read_outline(document, faults);
  choose_stages(stage, document, &outline, faults);
  separate_stages(document, *part, &outline, faults);
  return from_outline(outline, &document, faults);
}

bool is_recipe(const std::string& path) {
  const std::string text = YamlDocument::read_text(path);
  Diagnostics ignored;
  const std::optional<TextPart> part = find_yaml(path, text, &ignored);
  if (!part || part->begin > 0) return true;  // Markdown: only recipes are
  const YamlDocument document = YamlDocument::parse_part(path, text, *part, &ignored);
  if (!document.root().IsMap() || document.root()["run"].IsDefined()) return false;
  return std::any_of(document.root().begin(), document.root().end(), [](const auto& pair) {
    return (pair.first.IsScalar() && holds_modifiers(pair.first.Scalar(), pair.second)) ||
           is_stage(pair.second);
  });
}

Recipe recipe_of_modifiers(const YAML::Node& list, const YamlDocument& document,
                           Diagnostics* faults) {
  YamlDocument with_notes = document;
  return from_outline(outline_of_list("modifiers", list, document), &with_notes, faults);
}

}  // namespace lockstep::recal
