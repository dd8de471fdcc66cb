#pragma once

#include <filesystem>

#include "base/yaml/yaml_document.h"

namespace lockstep {

/// Where a file is that a YAML file names: as written, which is relative to the working folder, or
/// beside the YAML file, if it is there alone. As written if it is at neither place, or has no
/// name.
std::filesystem::path path_beside(const YamlDocument& document, const std::filesystem::path& named);

}  // namespace lockstep
