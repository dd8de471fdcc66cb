#pragma once

#include <string>

namespace lockstep::data {

/// The format of files that a path, a folder or a pattern names, by what the first of them begins
/// with, then by its ending: idx, cifar10, ... Throws Error(kInputMissing) if there is none,
/// Error(kConfig) if the format cannot be told.
std::string detect_format(const std::string& path);

}  // namespace lockstep::data
