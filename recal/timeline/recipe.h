#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/yaml/yaml_document.h"
#include "recal/timeline/modifier.h"

namespace lockstep::recal {

struct RecipeOutline;

/// A recipe as read: what changes while training runs, in the file's order. Immutable; copies share
/// the modifiers. Grammar and keys: docs/recipe.md.
///
/// Forms: a YAML file, the YAML front matter of a Markdown file (recal/recipe/front_matter.h), or the
/// `modifiers:` list of a run file. In a file, every top-level list whose name holds `modifiers` is
/// taken; other top-level values are variables for eval(...). A file may hold stages instead, which
/// are maps of such lists: they run one after another, each behind the last end of the one before,
/// or one of them by its name.
///
/// The readers put every fault of the text into `faults` in one pass; the result may only be used
/// if there is none.
class Recipe {
 public:
  /// An empty recipe: nothing changes.
  Recipe() = default;

  /// Most modifiers of one recipe, and most re:patterns in it.
  static constexpr int64_t kMaxModifiers = 1000;
  static constexpr int64_t kMaxPatterns = 1000;

  /// A file of its own; `stage`: only this one, empty: all. A missing file throws
  /// Error(kInputMissing).
  static Recipe load(const std::string& path, Faults* faults, const std::string& stage = "");
  static Recipe parse(const std::string& file, const std::string& text, Faults* faults,
                      const std::string& stage = "");
  /// True if the file is a recipe and no run file. Errors as load(); a file that cannot be read as
  /// either is none.
  static bool is_recipe(const std::string& path);
  /// The `modifiers:` list of a run file; eval(...) may stand in it, but has no variables.
  static Recipe from_modifiers(const YAML::Node& list, const YamlDocument& document,
                               Faults* faults);

  const std::vector<std::shared_ptr<const Modifier>>& modifiers() const { return modifiers_; }
  bool empty() const { return modifiers_.empty(); }
  /// Path of the file that holds it.
  const std::string& file() const { return file_; }
  /// What was assumed while reading, for the log: `file:line: ...`.
  const std::vector<std::string>& notes() const { return notes_; }
  /// SHA-256 of that file's bytes, to be compared over ranks; empty for an empty recipe.
  const std::string& source_sha256() const { return source_sha256_; }

 private:
  static Recipe from_outline(const RecipeOutline& outline, YamlDocument* document, Faults* faults);

  std::string file_;
  std::string source_sha256_;
  std::vector<std::shared_ptr<const Modifier>> modifiers_;
  std::vector<std::string> notes_;
};

}  // namespace lockstep::recal
