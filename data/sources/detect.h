#pragma once

#include <string>

namespace lockstep::data {

/// Returns the format of files that a path, folder or pattern names: idx, cifar10, ... The first
/// file's first bytes decide, then its ending. Throws Error(kInputMissing) if there is no file,
/// Error(kConfig) if the format cannot be determined.
std::string detect_format(const std::string& path);

}  // namespace lockstep::data
