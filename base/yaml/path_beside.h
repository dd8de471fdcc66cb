#pragma once

#include <filesystem>

#include "base/yaml/yaml_document.h"

namespace lockstep {

/// Returns the path of a file, or of a pattern's files (`*`, `?`, `[`), that a YAML file names. It
/// is the path as written, relative to the working folder. If only the path next to the YAML file
/// exists, it is that one. It is as written if neither exists, for an empty name, and for a path in
/// a store (s3://...).
std::filesystem::path path_beside(const YamlDocument& document, const std::filesystem::path& named);

}  // namespace lockstep
