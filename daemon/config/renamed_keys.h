#pragma once

#include <string>
#include <vector>

#include "base/yaml/yaml_document.h"
#include "daemon/config/overrides.h"

/// Deprecated keys: former names of keys of the run file, which are read for one more version, and
/// keys that no version reads any more.
namespace lockstep::daemon {

/// The former names, dotted.
std::vector<std::string> former_names();

/// Gives every renamed key of the document its new name, and a warning with the place of each. A
/// key that stands there under both names is a fault, which names both places.
std::vector<std::string> rename_keys(YamlDocument* document, Diagnostics* faults);

/// The same of overrides: their paths, not their values.
std::vector<std::string> rename_keys(std::vector<Override>* overrides);

/// The same of the lines "path=value" that a checkpoint of an earlier version keeps; no warnings.
std::string with_new_names(const std::string& settings_line);

/// Adds a fault for each removed key of the document, with its place and what to use instead, and
/// takes the key out of the document.
void refuse_removed_keys(YamlDocument* document, Diagnostics* faults);

/// Does the same for the paths of overrides.
void refuse_removed_keys(std::vector<Override>* overrides, Diagnostics* faults);

}  // namespace lockstep::daemon
