#pragma once

#include <string>
#include <vector>

#include <yaml-cpp/node/node.h>

#include "base/yaml_document.h"

namespace lockstep::daemon {

/// One value that stands above the file: from `--set a.b=value` or an environment variable.
struct Override {
  std::string path;    ///< dotted: optimizer.learning_rate
  std::string value;   ///< YAML: 0.1, [64, 10], text
  std::string origin;  ///< for messages: "--set optimizer.learning_rate=0.1",
                       ///< "LOCKSTEP_OPTIMIZER_LEARNING_RATE"
};

/// From the text after --set. Throws Error(kUsage) unless it reads path=value.
Override parse_set(const std::string& text);

/// Environment variables LOCKSTEP_<PATH> for the given field paths, dots as underscores, upper
/// case.
std::vector<Override> overrides_from_environment(const std::vector<std::string>& field_paths);

/// Puts the value into the tree, making maps on the way. Adds a fault if the value is not YAML or a
/// part of the path is not a map.
void apply_override(const Override& override_, YAML::Node root, Faults* faults);

/// Every scalar of the tree as "path=value", sorted: what a digest of the settings is taken over
/// and what is compared between ranks.
std::vector<std::string> flat_settings(const YAML::Node& root);

}  // namespace lockstep::daemon
