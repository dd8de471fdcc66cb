#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <yaml-cpp/node/node.h>

#include "base/yaml/yaml_document.h"

/// Settings that override the run file, and the names of keys in arguments and environment.
namespace lockstep::daemon {

/// Value that overrides the run file: from `--set a.b=value`, an environment variable or a flag.
struct Override {
  std::string path;    ///< dotted: optimizer.learning_rate
  std::string value;   ///< YAML, as after the key in the file: 0.1, [64, 10], text
  std::string origin;  ///< for messages: "--set run.seed", "environment LOCKSTEP_RUN_SEED"
  bool from_environment = false;  ///< weaker than --set
  bool is_flag = false;           ///< flag of the estimator, from after `--`
  bool is_default = false;        ///< weaker than the file: used only if the key is absent
  bool needs_section = false;     ///< used only if the map that contains the key exists
};

/// Quotes a text so that YAML reads it back as the same text.
std::string quoted_text(const std::string& text);

/// Parses the text after --set. Throws Error(kUsage) unless it has the form path=value.
Override parse_set(const std::string& text);

/// Returns the pair at a dotted path; its key is null if the path does not exist.
YamlPair find_at_path(const YAML::Node& root, std::string_view path);

/// Writes the overrides into the document's tree, in the order of the list. Each value is parsed as
/// the same text in the file would be (YamlDocument::parse_addition). The last override of a key
/// wins, and missing maps are created. If the tree contains one map twice (an alias), an override
/// changes it only at its own path.
///
/// An override also removes contradicting keys that have a weaker origin. One of each of these
/// groups remains: `recipe` and `modifiers`, the two batch sizes, the save intervals, the names of
/// eval_freq.
///
/// Adds a fault for a value that the document's reader refuses, and for a path through a node that
/// is not a map. A path must be in `known_paths`, or be a section above one of them.
void apply_overrides(const std::vector<Override>& overrides,
                     const std::vector<std::string>& known_paths, YamlDocument* document,
                     Diagnostics* faults);

/// Returns every scalar of the tree as "path=value", sorted. These lines are compared between ranks
/// and hashed into the digest of the settings. A null counts as an absent key and is left out.
/// Passwords in URLs are masked.
std::vector<std::string> flat_settings(const YAML::Node& root);

/// Makes a text safe for a terminal or a log: at most 100 bytes, and '?' for each byte that is not
/// printable ASCII.
std::string printable(std::string_view text);

/// Returns the environment variable of a key: LOCKSTEP_OPTIMIZER_LEARNING_RATE for
/// optimizer.learning_rate.
std::string variable_name(const std::string& path);

struct EnvironmentOverrides {
  std::vector<Override> list;
  /// One warning for each ignored LOCKSTEP_* variable: it names no key and does not belong to the
  /// project.
  std::vector<std::string> warnings;
};

/// Reads the variables LOCKSTEP_<PATH> of an environment, given as "NAME=value" texts. They may
/// name keys and sections inside sections (LOCKSTEP_DATA_EVAL). LOCKSTEP_VERSION belongs to the
/// container image and is not read.
EnvironmentOverrides overrides_from_environment(const std::vector<std::string>& environment,
                                                const std::vector<std::string>& known_paths);
/// Returns the environment of this process.
std::vector<std::string> process_environment();

}  // namespace lockstep::daemon
