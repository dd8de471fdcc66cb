#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "daemon/config/overrides.h"

namespace lockstep::daemon {

/// Makes a text safe for a terminal or a log: at most 100 bytes, and '?' for each byte that is not
/// printable ASCII.
std::string printable(std::string_view text);

/// Returns why no override may name this key; empty if one may. `known_paths`: keys of the run file
/// (optimizer.learning_rate). The sections above these keys may be named too. `version` may not be
/// named, because it is the grammar of the file itself.
std::string refusal_of_key(const std::string& path, const std::vector<std::string>& known_paths);

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
