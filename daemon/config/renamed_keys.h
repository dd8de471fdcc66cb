#pragma once

#include <string>
#include <vector>

#include "base/yaml/yaml_document.h"
#include "daemon/config/overrides.h"

/// Deprecated keys of the run file: renamed ones, whose former names are read for one more version,
/// and removed ones.
namespace lockstep::daemon {

/// Returns the former names, dotted.
std::vector<std::string> former_names();

/// Gives every renamed key of the document its new name and returns a warning with the place of
/// each. A key that occurs under both names is a fault that names both places.
std::vector<std::string> rename_keys(YamlDocument* document, Diagnostics* faults);

/// Does the same for the paths of overrides, not their values.
std::vector<std::string> rename_keys(std::vector<Override>* overrides);

/// Does the same, without warnings, for a "path=value" line that a checkpoint of an earlier version
/// contains.
std::string with_new_names(const std::string& settings_line);

/// Adds a fault for each removed key of the document, with its place and the replacement to use.
/// Removes the key from the document.
void refuse_removed_keys(YamlDocument* document, Diagnostics* faults);

/// Does the same for the paths of overrides.
void refuse_removed_keys(std::vector<Override>* overrides, Diagnostics* faults);

}  // namespace lockstep::daemon
