#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "daemon/config/overrides.h"

namespace lockstep::daemon {

/// For a terminal or a log: other bytes than printable ASCII as '?', and at most 100 of them.
std::string printable(std::string_view text);

/// Why no override may name this key; empty if one may. `known_paths` are the keys of the run file
/// (optimizer.learning_rate); the sections above them may be named too. `version` may not: it is
/// the grammar of the file itself.
std::string refusal_of_key(const std::string& path, const std::vector<std::string>& known_paths);

/// LOCKSTEP_OPTIMIZER_LEARNING_RATE of optimizer.learning_rate.
std::string variable_name(const std::string& path);

struct EnvironmentOverrides {
  std::vector<Override> list;
  /// One for each LOCKSTEP_* that names no key and is none of the project's own: it is ignored.
  std::vector<std::string> warnings;
};

/// The variables LOCKSTEP_<PATH> of an environment ("NAME=value" each): keys, and sections inside
/// sections (LOCKSTEP_DATA_EVAL). LOCKSTEP_VERSION is an image's, not ours.
EnvironmentOverrides overrides_from_environment(const std::vector<std::string>& environment,
                                                const std::vector<std::string>& known_paths);
/// The environment of this process.
std::vector<std::string> process_environment();

}  // namespace lockstep::daemon
