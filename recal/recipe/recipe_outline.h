#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/yaml/yaml_document.h"
#include "recal/schedule/recipe.h"

/// Structure of a recipe: its top level, and the stages into which it may be divided.
namespace lockstep::recal {

/// Top level of a recipe file, sorted by kind of entry, each in the file's order.
struct RecipeOutline {
  struct Entry {
    std::string name;
    YAML::Node node;
    YAML::Node key;  ///< node of the name, for faults
  };
  /// Part of a recipe that is trained in one go. A recipe without stages has one unnamed stage.
  struct Stage {
    std::string name;
    YAML::Node key;                     ///< node of the name, for faults
    std::vector<Entry> lists = {};      ///< lists of modifiers
    std::vector<Entry> variables = {};  ///< own variables, which override those of the top level
    /// Variables of the top level, if the stage was parsed into a tree of its own.
    std::vector<Entry> top_level = {};
    bool is_enabled = true;  ///< value of `enabled`
    /// True for `run_type: oneshot`, or without run_type if the name contains "oneshot".
    bool is_oneshot = false;
  };
  static constexpr size_t kMaxStages = 100;
  std::vector<Stage> stages;
  std::vector<Entry> variables;    ///< scalars, and lists and maps of them for aliases and eval()
  std::vector<std::string> notes;  ///< assumptions made, `file:line: ...`
};

/// True for an entry that a recipe uses as modifiers. These are lists, or maps of modifiers, whose
/// key contains "modifiers", and every entry whose key ends so. Other values, such as
/// `modifiers_lr: 0.1`, are variables.
bool holds_modifiers(std::string_view key, const YAML::Node& value);

/// True for a stage: a map that contains lists of modifiers.
bool is_stage(const YAML::Node& node);

/// Reads the top level, including `version`. Errors become faults. A `version` of 0.x, or a missing
/// one, is read as 1.0.0, with a note.
RecipeOutline read_outline(const YamlDocument& document, Diagnostics* faults);

/// Returns the outline of a document of which only the list of this name belongs to the recipe.
RecipeOutline outline_of_list(const std::string& name, const YAML::Node& list,
                              const YamlDocument& document);

/// Keeps only the stage of this name; with an empty name all enabled ones. Adds a fault if no such
/// stage exists, or if a kept stage is one-shot.
void choose_stages(std::string_view name, const YamlDocument& document, RecipeOutline* outline,
                   Diagnostics* faults);

/// Returns true if the entry is a list of modifiers, or a map of them by name. Else adds a fault.
bool check_is_list(const RecipeOutline::Entry& entry, const YamlDocument& document,
                   Diagnostics* faults);

/// Reads the modifiers of a recipe's stages, in the file's order. Each stage starts at the last end
/// of the previous one. Moments in a stage count from its start, and -1 means its start or end. A
/// window without bounds is the whole stage. The last stage ends with the run. The resulting places
/// go to `notes`. A stage without an end is a fault, except for the last one.
std::vector<std::shared_ptr<const Modifier>> read_stages(const RecipeOutline& outline,
                                                         const YamlDocument& document,
                                                         std::vector<std::string>* notes,
                                                         Diagnostics* faults);

}  // namespace lockstep::recal
