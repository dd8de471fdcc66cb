#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/yaml_document.h"
#include "recal/modifier.h"

namespace lockstep::recal {

/// A recipe as read: what changes while training runs, in the file's order. Immutable; copies share
/// the modifiers. Grammar and keys: docs/recipe.md.
///
/// The readers put every fault of the text into `faults` in one pass; the result may only be used
/// if there is none.
class Recipe {
 public:
  /// An empty recipe: nothing changes.
  Recipe() = default;

  /// A file of its own: a map of `version` and `modifiers`. A missing file throws
  /// Error(kInputMissing).
  static Recipe load(const std::string& path, Faults* faults);
  static Recipe parse(const std::string& file, const std::string& text, Faults* faults);
  /// The `modifiers:` list of a run file.
  static Recipe from_modifiers(const YAML::Node& list, const YamlDocument& document,
                               Faults* faults);

  const std::vector<std::shared_ptr<const Modifier>>& modifiers() const { return modifiers_; }
  bool empty() const { return modifiers_.empty(); }
  /// Path of the file that holds it.
  const std::string& file() const { return file_; }
  /// SHA-256 of that file's bytes, to be compared over ranks; empty for an empty recipe.
  const std::string& source_sha256() const { return source_sha256_; }

 private:
  static Recipe from_document(const YamlDocument& document, Faults* faults);

  std::string file_;
  std::string source_sha256_;
  std::vector<std::shared_ptr<const Modifier>> modifiers_;
};

}  // namespace lockstep::recal
