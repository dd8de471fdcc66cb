#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <yaml-cpp/node/node.h>

#include "base/yaml/yaml_document.h"

namespace lockstep::daemon {

/// One value that stands above the file: from `--set a.b=value` or an environment variable.
struct Override {
  std::string path;    ///< dotted: optimizer.learning_rate
  std::string value;   ///< YAML, as it would stand behind the key in the file: 0.1, [64, 10], text
  std::string origin;  ///< for messages: "--set run.seed", "environment LOCKSTEP_RUN_SEED"
  bool from_environment = false;  ///< these stand below --set
  bool is_flag = false;           ///< of the estimator, from behind `--`
  bool is_default = false;        ///< stands below the file: counts where the key is absent
  bool needs_section = false;     ///< counts only where the map that holds the key is there
};

/// Whatever stands in it, YAML reads it as this text.
std::string quoted_text(const std::string& text);

/// From the text after --set. Throws Error(kUsage) unless it reads path=value.
Override parse_set(const std::string& text);

/// The pair at a dotted path; one with a null key where there is none.
YamlPair find_at_path(const YAML::Node& root, std::string_view path);

/// Puts the values into the document's tree, in their order: each is read as the same text in the
/// file would be (YamlDocument::parse_addition), the last one of a key wins, and maps are made on
/// the way. Where the tree holds a map twice (an alias), the override changes it only at its own
/// path. An override takes back what cannot stand beside it and is of a weaker origin: of `recipe`
/// and `modifiers`, of the two batch sizes, save intervals and names of eval_freq, one is left.
///
/// Diagnostics: what the document's reader refuses, a path that is not one of `known_paths` or a
/// section above them, and a path through something that is not a map.
void apply_overrides(const std::vector<Override>& overrides,
                     const std::vector<std::string>& known_paths, YamlDocument* document,
                     Diagnostics* faults);

/// Every scalar of the tree as "path=value", sorted: what a digest of the settings is taken over
/// and what is compared between ranks. A null is as good as an absent key and is left out;
/// passwords in URLs are not told.
std::vector<std::string> flat_settings(const YAML::Node& root);

}  // namespace lockstep::daemon
