#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "recal/timeline/modifier.h"

namespace lockstep::recal {

/// Recipe as read (recal/recipe/recipe_reader.h): the changes during training, in the file's order.
/// Immutable; copies share the modifiers.
class Recipe {
 public:
  /// Creates an empty recipe, which changes nothing.
  Recipe() = default;
  Recipe(std::string file, std::string source_sha256,
         std::vector<std::shared_ptr<const Modifier>> modifiers, std::vector<std::string> notes)
      : file_(std::move(file)),
        source_sha256_(std::move(source_sha256)),
        modifiers_(std::move(modifiers)),
        notes_(std::move(notes)) {}

  const std::vector<std::shared_ptr<const Modifier>>& modifiers() const { return modifiers_; }
  bool empty() const { return modifiers_.empty(); }
  bool prunes() const {
    return std::any_of(modifiers_.begin(), modifiers_.end(),
                       [](const auto& modifier) { return modifier->prunes(); });
  }
  /// Path of the recipe's file.
  const std::string& file() const { return file_; }
  /// Assumptions made while reading, for the log: `file:line: ...`.
  const std::vector<std::string>& notes() const { return notes_; }
  /// SHA-256 of the file's bytes, for comparison over ranks; empty for an empty recipe.
  const std::string& source_sha256() const { return source_sha256_; }

 private:
  std::string file_;
  std::string source_sha256_;
  std::vector<std::shared_ptr<const Modifier>> modifiers_;
  std::vector<std::string> notes_;
};

}  // namespace lockstep::recal
