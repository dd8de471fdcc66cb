#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/yaml/yaml_document.h"

namespace lockstep::recal {

/// The top level of a recipe's file, sorted by what its entries are; each in the file's order.
struct RecipeOutline {
  struct Entry {
    std::string name;
    YAML::Node node;
    YAML::Node key;  ///< where the name stands
  };
  /// What is trained in one go. A recipe without stages has one, without a name.
  struct Stage {
    std::string name;
    YAML::Node key;                     ///< where the name stands
    std::vector<Entry> lists = {};      ///< lists of modifiers
    std::vector<Entry> variables = {};  ///< the stage's own, which win over those of the top level
    /// If the stage was read into a tree of its own: the top level's variables in that tree.
    std::vector<Entry> top_level = {};
    bool is_enabled = true;  ///< `enabled`
    /// `run_type: oneshot`, or without run_type a name that holds "oneshot".
    bool is_oneshot = false;
  };
  static constexpr size_t kMaxStages = 100;
  std::vector<Stage> stages;
  std::vector<Entry> variables;    ///< scalars, and lists and maps of them for aliases and eval()
  std::vector<std::string> notes;  ///< what was assumed, `file:line: ...`
};

/// True for what a recipe has as modifiers: a list, or a map of modifiers, whose name holds
/// "modifiers", and whatever has a name that ends so. Other values, `modifiers_lr: 0.1`, are
/// variables.
bool holds_modifiers(std::string_view key, const YAML::Node& value);

/// True for a map that holds lists of modifiers: a stage.
bool is_stage(const YAML::Node& node);

/// Reads the top level, `version` included; what is wrong there becomes a fault. A `version` of
/// 0.x, or none, is read as 1.0.0 with a note.
RecipeOutline read_outline(const YamlDocument& document, Diagnostics* faults);

/// The same of a document of which only the list of this name is a recipe's.
RecipeOutline outline_of_list(const std::string& name, const YAML::Node& list,
                              const YamlDocument& document);

/// Keeps the stage of this name only; all that are enabled if the name is empty. A fault if there
/// is no such stage, or if one of those kept is one-shot.
void choose_stages(std::string_view name, const YamlDocument& document, RecipeOutline* outline,
                   Diagnostics* faults);

/// A fault, and false, unless the entry is a list of modifiers, or a map of them by name.
bool check_is_list(const RecipeOutline::Entry& entry, const YamlDocument& document,
                   Diagnostics* faults);

}  // namespace lockstep::recal
