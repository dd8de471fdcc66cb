#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::data {

/// The files that a path names, sorted: itself, those directly in a folder (hidden ones left out),
/// or those that match a pattern (`*`, `?`, `[a-z]`, `**` as `*`; with or without an extension).
/// Throws Error(kInputMissing) with the nearest name if there is none.
std::vector<std::filesystem::path> expand_files(const std::string& path);

}  // namespace lockstep::data
