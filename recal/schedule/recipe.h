#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/yaml/yaml_document.h"
#include "recal/schedule/train_time.h"

/// Recipe as a list of modifiers, and the base class of all modifiers.
namespace lockstep::recal {

class TimelineBuilder;

/// Outputs in which the parameters of a modifier have their own summaries.
enum class ParamLogs {
  kByDefault,   ///< TensorBoard
  kEverywhere,  ///< TensorBoard and Prometheus
  kNowhere,
};

/// Entry of a recipe: options without state. Its effect is compiled into the timeline before step
/// 0. So equal ranks stay equal, and a resumed run does the same as an uninterrupted one.
class Modifier {
 public:
  Modifier(std::string tag, SourceLocation location)
      : tag_(std::move(tag)), location_(std::move(location)) {}
  virtual ~Modifier() = default;

  /// Recipe tag without its '!', as written: GradualKSModifier, or an alias of it.
  const std::string& tag() const { return tag_; }
  const SourceLocation& location() const { return location_; }

  virtual Window window() const = 0;
  /// Converts the modifier's moments from those of its stage to those of the run. Call it once,
  /// before anything else.
  virtual void place_in(StageSpan* stage) = 0;
  /// Short description of the effect, for `lockstep plan`.
  virtual std::string summary() const = 0;
  /// Adds the actions. Faults and warnings that need the model or the steps per epoch go to the
  /// builder as well.
  virtual void compile(TimelineBuilder* builder) const = 0;
  /// True if it makes masks. They may keep few weights, so gradients may be packed.
  virtual bool prunes() const { return false; }
  /// Outputs in which each of its parameters has its own summaries (`log_types`).
  virtual ParamLogs param_logs() const { return ParamLogs::kByDefault; }

 private:
  std::string tag_;
  SourceLocation location_;
};

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
