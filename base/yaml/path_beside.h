#pragma once

#include <filesystem>

#include "base/yaml/yaml_document.h"

namespace lockstep {

/// Where a file is that a YAML file names, or the files of a pattern (`*`, `?`, `[`): as written,
/// which is relative to the working folder, or beside the YAML file, if they are there alone. As
/// written if they are at neither place, for no name, and for a path in a store (s3://...).
std::filesystem::path path_beside(const YamlDocument& document, const std::filesystem::path& named);

}  // namespace lockstep
