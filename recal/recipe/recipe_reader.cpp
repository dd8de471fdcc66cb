#include "recal/recipe/recipe_reader.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "base/digest.h"
#include "base/error.h"
#include "recal/recipe/recipe_outline.h"
#include "recal/recipe/recipe_variables.h"

// Readers of recipes: from a file, its front matter, or a run file.
namespace lockstep::recal {

// find_yaml() examines the structure only: fences, comments, first lines. The YAML itself is parsed
// later.
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::string_view kBlank = " \t\r\n";
constexpr std::string_view kCommentBegin = "<!--";
constexpr std::string_view kCommentEnd = "-->";

/// Returns the first offset from `at` on that is not blank, or the end.
size_t after_blank(std::string_view text, size_t at) {
  return std::min(text.find_first_not_of(kBlank, at), text.size());
}

/// Returns the offset after the end of the line that contains `at`.
size_t next_line(std::string_view text, size_t at) {
  const size_t end = text.find('\n', at);
  return end == std::string_view::npos ? text.size() : end + 1;
}

/// True if the line is `---`, followed by blanks only.
bool is_fence(std::string_view text, size_t line_begin) {
  if (line_begin > kByteOrderMark.size() && text[line_begin - 1] != '\n') return false;
  const std::string_view line = text.substr(line_begin, next_line(text, line_begin) - line_begin);
  return line.substr(0, 3) == "---" && line.find_first_not_of(kBlank, 3) == std::string_view::npos;
}

size_t find_fence(std::string_view text, size_t at) {
  while (at < text.size() && !is_fence(text, at)) at = next_line(text, at);
  return at;
}

bool is_named_markdown(std::string_view file) {
  return file.ends_with(".md") || file.ends_with(".markdown");
}

/// True if the first line that is not a comment is `key:` or a list item with a tag.
bool looks_like_yaml(std::string_view text) {
  size_t at = after_blank(text, 0);
  while (at < text.size() && text[at] == '#') at = after_blank(text, next_line(text, at));
  const std::string_view line = text.substr(at, next_line(text, at) - at);
  if (line.substr(0, 3) == "- !") return true;
  const size_t colon = line.find(':');
  return colon != std::string_view::npos && colon > 0 && line.find_first_of(" \t") >= colon &&
         (colon + 1 == line.size() || kBlank.find(line[colon + 1]) != std::string_view::npos);
}

Fault fault_in(const std::string& file, std::string_view text, size_t at, std::string message) {
  const auto begin = text.begin();
  const auto line = 1 + std::count(begin, begin + static_cast<std::ptrdiff_t>(at), '\n');
  const std::string_view source = text.substr(at, text.find_first_of("\r\n", at) - at);
  // The source line in a fault is cut: a file may be one very long line.
  return {file, line, 1, std::move(message), std::string(source.substr(0, 160))};
}

/// Finds the YAML part of a recipe's text. For Markdown this is the front matter: the text between
/// the first line `---` and the next such line. Only blank lines and HTML comments may come before
/// it, and it does not begin at byte 0. Any other text is YAML as a whole.
///
/// The text decides. The file name only decides if both readings are possible: a text that
/// continues with YAML after the second `---`. It is Markdown in a `.md` or `.markdown` file, and
/// two YAML documents in other files.
///
/// Returns nullopt, with a fault, if a comment or the front matter has no end.
std::optional<TextPart> find_yaml(const std::string& file, const std::string& text,
                                  Diagnostics* faults) {
  const std::string_view view = text;
  const auto refuse = [&](size_t at, std::string message) {
    faults->add(fault_in(file, view, at, std::move(message)));
    return std::nullopt;
  };
  size_t at = after_blank(view, view.substr(0, 3) == kByteOrderMark ? 3 : 0);
  // HTML comments (such as licences) before the fence show that the file is Markdown.
  bool is_markdown = false;
  while (view.substr(at, kCommentBegin.size()) == kCommentBegin) {
    const size_t end = view.find(kCommentEnd, at);
    if (end == std::string_view::npos) return refuse(at, "this comment has no end ('-->')");
    is_markdown = true;
    at = after_blank(view, end + kCommentEnd.size());
  }
  const TextPart whole{0, view.size()};
  if (!is_fence(view, at)) {
    if (!is_markdown) return whole;
    return refuse(at, "after the comment a recipe must begin with a line '---'");
  }
  const TextPart part{next_line(view, at), find_fence(view, next_line(view, at))};
  // A recipe that is plain YAML may also begin with `---`, the start of a YAML document.
  is_markdown = is_markdown || is_named_markdown(file);
  if (part.end < view.size())
    return is_markdown || !looks_like_yaml(view.substr(next_line(view, part.end))) ? part : whole;
  if (!is_markdown) return whole;
  return refuse(at, "the front matter that begins here has no end (a second line '---')");
}

// Steps: find the YAML, sort its top level (outline), choose stages, evaluate eval(...), read the
// modifiers. All steps report to one list of faults.

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
    const YamlDocument copied =
        YamlDocument::parse_part(document.file(), document.text(), part, &known);
    RecipeOutline copy = read_outline(copied, &known);
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

Recipe load_named(ConfigReader* in, const std::string& name, const std::string& stage) {
  const std::filesystem::path beside =
      std::filesystem::path(in->document().file()).parent_path() / name;
  for (const std::filesystem::path& path : {std::filesystem::path(name), beside}) {
    // An unreadable path counts as missing, and the next one is tried.
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(path, ignored)) continue;
    try {
      return load_recipe(path.string(), in->faults(), stage);
    } catch (const Error& fault) {
      // Errors of the file become faults at the run file's key, next to its other faults.
      in->fault("recipe", fault.what());
      return {};
    }
  }
  in->fault("recipe", fmt::format("no recipe file '{}' (nor '{}')", name, beside.string()));
  return {};
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

Recipe read_recipe(ConfigReader* in) {
  std::string name;
  const bool is_named = in->read("recipe", &name, "file of the recipe (docs/recipe.md)");
  std::string stage;
  const bool names_stage = in->read("recipe_stage", &stage, "single stage of the recipe to run");
  if (names_stage && stage.empty()) in->fault("recipe_stage", "'recipe_stage' must be a name");
  if (names_stage && !in->has("recipe"))
    in->fault("recipe_stage", "'recipe_stage' needs 'recipe': it names a stage of that file");
  const YAML::Node inlined =
      in->take("modifiers", "list of modifiers", "inline recipe, instead of recipe");
  if (in->has("recipe") && inlined.IsDefined()) {
    in->fault("modifiers", "'recipe' and 'modifiers' are both given: keep one of them");
    return {};
  }
  if (is_named) return load_named(in, name, stage);
  return inlined.IsDefined() ? recipe_of_modifiers(inlined, in->document(), in->faults())
                             : Recipe();
}

}  // namespace lockstep::recal
